"""What looks at training, and what imitates neighbours. Nothing else needs it."""

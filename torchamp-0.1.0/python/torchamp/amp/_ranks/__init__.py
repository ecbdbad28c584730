"""Training on several ranks: what they agree on, and which of them has which part of what."""

"""Tools that look at training, and plugins for other libraries. Nothing else needs them."""

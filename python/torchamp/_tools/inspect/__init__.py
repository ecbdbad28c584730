"""Tools that show what mixed precision does to a model: dtypes, casts, and numbers out of range."""

"""What mixed precision does to a model: dtypes, casts, bytes, and where numbers leave a range."""

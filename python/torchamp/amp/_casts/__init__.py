"""Which tensors are cast, and what O1 and O4 cast."""

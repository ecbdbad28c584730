"""apex.contrib: what torchamp has of it."""

__all__: list = []

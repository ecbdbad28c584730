"""The version of apex.amp whose names these are."""

VERSION = (0, 1, 0)
__version__ = ".".join(map(str, VERSION))

__all__ = ["VERSION", "__version__"]

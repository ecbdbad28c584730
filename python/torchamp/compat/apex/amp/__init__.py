"""apex.amp: torchamp.amp's functions, which have apex's names and signatures."""

from torchamp.amp import *  # noqa: F403
from torchamp.amp import __all__  # noqa: F401

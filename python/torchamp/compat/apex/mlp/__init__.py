"""apex.mlp."""

from torchamp.compat import _gone
from torchamp.compat.apex.mlp.mlp import MLP

__all__ = ["MLP"]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.mlp")

"""apex.mlp."""

from torchamp.compat.apex.mlp.mlp import MLP, mlp_function

__all__ = ["MLP", "mlp_function"]

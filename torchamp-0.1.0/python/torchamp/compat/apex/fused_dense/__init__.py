"""apex.fused_dense."""

from torchamp.compat.apex.fused_dense import fused_dense
from torchamp.compat.apex.fused_dense.fused_dense import *  # noqa: F403

__all__ = fused_dense.__all__

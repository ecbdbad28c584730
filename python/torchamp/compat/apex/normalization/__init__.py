"""apex.normalization, on torch's own norms."""

from torchamp.compat import _gone
from torchamp.compat.apex.normalization.fused_layer_norm import FusedLayerNorm, FusedRMSNorm

__all__ = ["FusedLayerNorm", "FusedRMSNorm"]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.normalization")

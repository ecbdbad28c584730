"""apex.multi_tensor_apply: how apex's programs call amp_C's functions."""

from torchamp.compat.apex.multi_tensor_apply.multi_tensor_apply import (
    MultiTensorApply,
    multi_tensor_applier,
)

__all__ = ["MultiTensorApply", "multi_tensor_applier"]

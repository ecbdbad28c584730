"""amp_C: apex's functions on lists of tensors, over torchamp's ops.

All take `chunk_size` (not used), `noop_flag` (int32 of one element) and `tensor_lists`, then their
own arguments. Lists may mix dtypes, layouts and sizes; nothing waits for the device. `noop_flag` is
set to 1 by what was not finite, and by a 16-bit output that overflowed.
"""

from torchamp.compat import _gone
from torchamp.compat.amp_C._elementwise import (
    multi_tensor_axpby,
    multi_tensor_l2norm,
    multi_tensor_scale,
)
from torchamp.compat.amp_C._steps import (
    multi_tensor_adam,
    multi_tensor_lamb_stage1_cuda,
    multi_tensor_lamb_stage2_cuda,
)

__all__ = [
    "multi_tensor_adam",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_lamb_stage1_cuda",
    "multi_tensor_lamb_stage2_cuda",
    "multi_tensor_scale",
]

__getattr__: _gone.Getattr = _gone.attributes_of("amp_C")

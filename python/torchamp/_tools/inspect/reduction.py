"""Products that are summed in float16, which overflows where float32 sums do not."""

from __future__ import annotations

import torch

from torchamp._tools.inspect.watch import Op, is_finite

_NAMES = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul")
#: None writes to its arguments.
_PRODUCTS = frozenset(getattr(torch.ops.aten, name).default for name in _NAMES)

#: What a message on such a product ends with.
REMEDY = (
    "; float32 sums avoid it: "
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False, in C++ "
    "at::globalContext().setAllowFP16ReductionCuBLAS(false)"
)


def is_reduced(op: Op) -> bool:
    """Whether `op`, whose output is not finite, is a float16 product that is finite if computed in
    float32 and then rounded. False where cuBLAS must not reduce in float16. Waits for the device
    after such a product alone."""
    is_product = op.function in _PRODUCTS and op.outputs[0].dtype == torch.float16
    if not is_product or not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction:
        return False
    args, kwargs = op.arguments
    with torch.autocast(op.outputs[0].device.type, enabled=False):
        wide = (arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args)
        return is_finite(op.function(*wide, **kwargs).half())

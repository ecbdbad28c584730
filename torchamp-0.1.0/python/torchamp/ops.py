"""The ops: what mixed precision does to lists of tensors, fused over each list.

Rules common to all of them:

* The tensors of one call are on one device. A list may mix float32, float16, bfloat16 and float64,
  and any sizes; tensors at the same position of different lists have the same sizes. None and empty
  tensors are skipped. An op may overwrite its inputs, but no part of one.
* Arithmetic is in float32 (in float64 where an input is float64), rounded once to the output's
  dtype.
* Nothing waits for the device: what an op finds, it writes to `found_inf`.
* A wrong argument raises before anything is written.
* torch.compile has each op in its graph. There lists hold tensors alone, not None.
"""

from typing import TYPE_CHECKING

import torchamp._load  # noqa: F401  before _C, which another torch cannot load
from torchamp._C import StepAlgorithm
from torchamp._C.ops import Check, ScaleRule

if TYPE_CHECKING:
    from torchamp._C import fused_step
    from torchamp._C.ops import (
        axpby,
        check,
        check_l2norm,
        copy_cast,
        l2norm,
        scale,
        unscale,
        update_scale,
    )
else:
    from torchamp import _C
    from torchamp._in_graphs import traceable

    axpby = traceable(_C.ops.axpby)
    check = traceable(_C.ops.check)
    check_l2norm = traceable(_C.ops.check_l2norm)
    copy_cast = traceable(_C.ops.copy_cast)
    fused_step = traceable(_C.fused_step)
    l2norm = traceable(_C.ops.l2norm)
    scale = traceable(_C.ops.scale)
    unscale = traceable(_C.ops.unscale)
    update_scale = traceable(_C.ops.update_scale)

__all__ = [
    "Check",
    "ScaleRule",
    "StepAlgorithm",
    "axpby",
    "check",
    "check_l2norm",
    "copy_cast",
    "fused_step",
    "l2norm",
    "scale",
    "unscale",
    "update_scale",
]

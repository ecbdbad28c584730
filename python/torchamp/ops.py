"""The ops: what mixed precision does to lists of tensors, fused over each list.

Rules common to all of them:

* The tensors of one call are on one device. A list may mix float32, float16, bfloat16 and float64,
  and any sizes; tensors at the same position of different lists have the same sizes. None and empty
  tensors are skipped. An op may overwrite its inputs, but no part of one.
* Arithmetic is in float32 (in float64 where an input is float64), rounded once to the output's
  dtype.
* Nothing waits for the device: what an op finds, it writes to `found_inf`.
* A wrong argument raises before anything is written.
"""

import torchamp._load  # noqa: F401  before _C, which another torch cannot load
from torchamp._C import StepAlgorithm, fused_step
from torchamp._C.ops import (
    Check,
    ScaleRule,
    axpby,
    check,
    check_l2norm,
    copy_cast,
    l2norm,
    scale,
    unscale,
    update_scale,
)

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

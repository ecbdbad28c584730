"""The ops: what mixed precision does to lists of tensors, fused over each list.

Rules common to all of them:

* The tensors of one call are on one device. A list may mix float32, float16, bfloat16 and float64,
  and any sizes; tensors at the same position of different lists have the same sizes. None and empty
  tensors are skipped. An op may overwrite its inputs, but no part of one.
* Arithmetic is in float32 (in float64 where an input is float64), rounded once to the output's
  dtype. The ops of float8 take no float64.
* Nothing waits for the device: what an op finds, it writes to `found_inf`.
* A wrong argument raises before anything is written.
* torch.compile has each op in its graph. There lists hold tensors alone, not None.
"""

from typing import TYPE_CHECKING

import torchamp._load  # noqa: F401  before _C, which another torch cannot load
from torchamp._C import StepAlgorithm as StepAlgorithm

if TYPE_CHECKING:
    from torchamp._C.ops import *  # noqa: F403
else:
    from torchamp import _C
    from torchamp._in_graphs import traceable

    _public = {name: each for name, each in vars(_C.ops).items() if not name.startswith("_")}
    globals().update({n: x if isinstance(x, type) else traceable(x) for n, x in _public.items()})
    __all__ = sorted([*_public, "StepAlgorithm"])

"""apex.amp.amp: casts of O1 without a model, and functions of the program's own under them."""

from __future__ import annotations

import torch

from torchamp.amp import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from torchamp.amp._casts.autocast import Ban, OpenCasts
from torchamp.compat.apex.amp._amp_state import _amp_state
from torchamp.compat.apex.amp._list_edits import follow_list_edits
from torchamp.compat.apex.amp.handle import AmpHandle

__all__ = [
    "float_function",
    "half_function",
    "init",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
]


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
    *,
    patch_type: torch.dtype = torch.float16,
) -> AmpHandle:
    """Casts as O1 from now on in this thread, until the handle's _deactivate(); `enabled` False
    casts nothing. allow_banned: whether functions that O1 refuses for 16-bit tensors run in float32
    instead. patch_type: the 16-bit type, as in ROCm's apex; bfloat16 casts as O4. loss_scale,
    enable_caching, verbose: accepted; amp.initialize scales losses."""
    if not enabled:
        return AmpHandle(None)
    Ban.is_lifted = allow_banned
    follow_list_edits()
    types = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    _amp_state.legacy_handle = AmpHandle(OpenCasts(types, patch_type))
    return _amp_state.legacy_handle

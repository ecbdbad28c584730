"""What O1 casts of the methods of tensors."""

from __future__ import annotations

import torch

from torchamp.compat.apex.amp.lists import torch_overrides

__all__ = ["CASTS", "FP16_FUNCS", "FP32_FUNCS", "MODULE"]

MODULE = torch.Tensor


def _and_torchs(own: str, torchs: list[str]) -> list[str]:
    return [name for name in (*own.split(), *torchs) if hasattr(MODULE, name)]


#: In the 16-bit type.
FP16_FUNCS = _and_torchs("__matmul__", torch_overrides.FP16_FUNCS)

#: In float32. apex also lists cpu, which keeps the dtype here.
FP32_FUNCS = _and_torchs("__ipow__ __pow__ __rpow__", torch_overrides.FP32_FUNCS)

#: In the widest of their arguments' types.
CASTS = _and_torchs(
    "__add__ __div__ __eq__ __ge__ __gt__ __iadd__ __idiv__ __imul__ __isub__ __itruediv__ __le__ "
    "__lt__ __mul__ __ne__ __radd__ __rdiv__ __rmul__ __rsub__ __rtruediv__ __sub__ __truediv__",
    torch_overrides.CASTS,
)

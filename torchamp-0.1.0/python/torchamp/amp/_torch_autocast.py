"""torch's autocast, for programs that cast by themselves."""

from __future__ import annotations

from typing import Any, overload

import torch


@overload
def autocast(
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> torch.autocast: ...


@overload
def autocast(
    enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
) -> torch.autocast: ...


def autocast(*args: Any, **kwargs: Any) -> torch.autocast:
    """Returns a torch.autocast, a context and a decorator.

    Takes the arguments of torch.autocast (device_type, dtype=None, enabled=True,
    cache_enabled=None); without device_type those of torch.cuda.amp.autocast (enabled=True,
    dtype=torch.float16, cache_enabled=True), for CUDA.
    """
    has_device = "device_type" in kwargs or (args and not isinstance(args[0], bool))
    return torch.autocast(*args, **kwargs) if has_device else _of_cuda(*args, **kwargs)


def _of_cuda(
    enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
) -> torch.autocast:
    return torch.autocast("cuda", dtype, enabled, cache_enabled)

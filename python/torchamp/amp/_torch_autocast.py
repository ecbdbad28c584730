"""torch's autocast, for programs that cast by themselves."""

from __future__ import annotations

from typing import Any, overload

import torch

from torchamp._logging import warn


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
    return _of_device(*args, **kwargs) if has_device else _of_cuda(*args, **kwargs)


def _of_device(
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> torch.autocast:
    enabled = enabled and not is_missing("autocast", device_type)
    return torch.autocast(device_type, dtype, enabled, cache_enabled)


def _of_cuda(
    enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
) -> torch.autocast:
    return _of_device("cuda", dtype, enabled, cache_enabled)


def is_missing(what: str, device_type: str) -> bool:
    """Whether torch disables `what` since there is no CUDA. Warns then, at the program's line:
    torch's own warning has that of its caller."""
    if device_type != "cuda" or torch.compiler.is_compiling():
        return False
    if not torch.cuda.amp.common.amp_definitely_not_available():
        return False
    warn(f"{what}: expected CUDA, got none: CUDA is not available, so it is disabled")
    return True

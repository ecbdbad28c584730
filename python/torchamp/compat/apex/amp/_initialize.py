"""apex.amp._initialize: how what goes in and out of forward is cast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

__all__ = ["applier", "to_type"]


def to_type(dtype: torch.dtype, t: torch.Tensor) -> torch.Tensor:
    """`t` in `dtype` if it is floating, else `t`."""
    return t.to(dtype) if t.is_floating_point() else t


def applier(value: Any, fn: Callable) -> Any:
    """`value` with `fn` applied to each tensor in it."""
    if hasattr(value, "to"):
        return fn(value)
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Mapping):
        return {applier(key, fn): applier(element, fn) for key, element in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(applier(element, fn) for element in value))
    if isinstance(value, (Sequence, Set)):
        kind: Callable = type(value)
        return kind(applier(element, fn) for element in value)
    return value

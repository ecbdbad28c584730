"""apex.amp.compat: what kind of values these are, asked in one way for every torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = [
    "filter_attrs",
    "is_floating_point",
    "is_tensor_like",
    "scalar_python_val",
    "tensor_is_float_tensor",
    "tensor_is_variable",
    "variable_is_tensor",
]


def variable_is_tensor() -> bool:
    """True, since torch 0.4."""
    return True


def tensor_is_variable() -> bool:
    """True, since torch 0.4."""
    return True


def tensor_is_float_tensor() -> bool:
    """False: a tensor's class does not say its dtype."""
    return False


def is_tensor_like(x: Any) -> bool:
    """Whether `x` is a tensor."""
    return isinstance(x, torch.Tensor)


def is_floating_point(x: torch.Tensor) -> bool:
    """Whether `x` has a floating dtype."""
    return x.is_floating_point()


def scalar_python_val(x: Any) -> Any:
    """The value of a tensor of one element, or `x[0]`. Waits for the device."""
    return x.item() if hasattr(x, "item") else x[0]


def filter_attrs(module: Any, attrs: Iterable[str]) -> list[str]:
    """The ones of `attrs` that `module` has."""
    return [name for name in attrs if hasattr(module, name)]

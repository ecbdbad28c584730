"""The numbers that programs assign to attributes: of any type that Python makes a number of."""

from __future__ import annotations

import math
from typing import Any

import torch

#: The largest count that scalers keep: one that is never reached.
_NEVER = 2**31 - 1


def to_number(name: str, value: Any) -> float:
    """`value`, a number of Python's or NumPy's, text, or a tensor of one element. Raises TypeError,
    which names LossScaler's `name`, for anything else and for NaN. Waits for a tensor's device."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if math.isnan(number):
        raise TypeError(f"LossScaler: expected {name} to be a number, got {_described(value)}")
    return number


def to_scale(name: str, value: Any) -> float:
    """A positive and finite number. Raises TypeError, and ValueError for others."""
    scale = to_number(name, value)
    if not 0 < scale < math.inf:
        raise ValueError(
            f"LossScaler: expected {name} to be positive and finite, got {_described(value)}"
        )
    return scale


def to_count(name: str, value: Any, minimum: int) -> int:
    """A whole number of at least `minimum`; infinity is never reached. Raises TypeError, and
    ValueError for others."""
    count = min(to_number(name, value), _NEVER)
    if count < minimum or count != int(count):
        raise ValueError(
            f"LossScaler: expected {name} to be a whole number of at least {minimum}, got "
            f"{_described(value)}"
        )
    return int(count)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        return f"a tensor of sizes {list(value.shape)}"
    is_short = value is None or isinstance(value, (int, float, str, torch.Tensor))
    return repr(value) if is_short else f"a {type(value).__name__}"

"""Checks of the options of a fused optimizer's groups."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from torchamp._load import _C


def check_option(where: str, option: _C.OptionSpec, values: dict[str, Any]) -> None:
    """Raises ValueError, which begins with `where`, unless values[option.name] is in its range."""
    value: Any = values.get(option.name)
    _check_kind(where, option, value)
    for i, beta in enumerate(value if option.is_betas else ()):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"{where}: expected {option.name}[{i}] to be in [0, 1), got {beta}")
    if isinstance(value, torch.Tensor):
        _check_tensor(where, option.name, value)
    check_minimum(where, option.name, value, option.minimum)


def _check_kind(where: str, option: _C.OptionSpec, value: Any) -> None:
    if option.is_betas:
        if not _are_betas(value):
            raise ValueError(f"{where}: expected {option.name} to be two numbers, got {value!r}")
    elif not _is_number(value) and not (value is None and option.name != "lr"):
        raise ValueError(f"{where}: expected {option.name} to be a number, got {value!r}")


def _are_betas(value: Any) -> bool:
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    return is_pair and all(isinstance(beta, numbers.Real) for beta in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Real, torch.Tensor))


def _check_tensor(where: str, name: str, value: torch.Tensor) -> None:
    if name != "lr":
        raise ValueError(f"{where}: expected {name} to be a number, got a tensor")
    if value.numel() != 1:
        raise ValueError(
            f"{where}: expected lr to be a number or a tensor of one element, got sizes "
            f"{list(value.shape)}"
        )


def check_minimum(where: str, name: str, value: Any, minimum: float) -> None:
    """Raises ValueError for a number that is smaller or NaN. A tensor is checked on the CPU alone,
    since nothing waits for a device."""
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_cpu:
        value = value.item()
    if isinstance(value, (int, float)) and not value >= minimum:
        raise ValueError(f"{where}: expected {name} to be at least {minimum}, got {value}")

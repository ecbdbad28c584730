"""Linears in float8, and their products, counted."""

from collections.abc import Callable
from typing import Any

import torch
from nets import initialized, sgd
from torch import nn

from torchamp._load import _C

LEVELS = ["O4", "O5"]


class Blocks(nn.Module):
    """A linear of five outputs after two that fit into float8."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.ff(x))


def in_float8(level: str, model: nn.Module, names=("ff",), optimizer=sgd, **options) -> Any:
    """(model, optimizer)."""
    return initialized(level, model, optimizer, float8=list(names), **options)


def linear(level: str, inputs: int = 64, outputs: int = 32, bias: bool = True) -> Any:
    """A linear in float8, which is called as it is, and what keeps it so."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias))
    model, _ = in_float8(level, model, ["0"])
    return model[0], model


def counted(function: Callable[[], Any]) -> tuple[Any, int]:
    """The result, and how many products it computed in float8."""
    before, _ = _C.float8_counts()
    return function(), _C.float8_counts()[0] - before


def casts(function: Callable[[], Any]) -> int:
    """How many matrices it casts to float8."""
    _, before = _C.float8_counts()
    function()
    return _C.float8_counts()[1] - before


def relative_error(tensor: torch.Tensor, right: torch.Tensor) -> float:
    """By Frobenius norms."""
    return ((tensor.double() - right).norm() / right.norm()).item()

"""Attributes of apex's optimizers that are options of torchamp's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchamp.optimizers import FusedOptimizer


class OptionAttribute:
    """An optimizer's attribute over the option of its groups. Writing it writes all groups.

    option: torchamp's name. kind: what reading gives, bool or apex's 0 and 1. negated: the
    attribute is the opposite of the option.
    """

    def __init__(self, option: str, kind: Callable = int, negated: bool = False) -> None:
        self._option, self._kind, self._negated = option, kind, negated

    def __get__(self, optimizer: FusedOptimizer | None, owner: type | None = None) -> Any:
        if optimizer is None:
            return self
        return self._kind(bool(optimizer.defaults[self._option]) != self._negated)

    def __set__(self, optimizer: FusedOptimizer, value: Any) -> None:
        for options in (optimizer.defaults, *optimizer.param_groups):
            options[self._option] = bool(value) != self._negated

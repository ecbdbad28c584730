"""Stage 2: cast. The modules that initialize's keep_fp32 leaves in float32, at every level."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch

from torchamp._shards import is_dtensor

#: A module's name in the model, its class, or a predicate of both name and module.
Rule = Union[str, type[torch.nn.Module], Callable[[str, torch.nn.Module], bool]]


def rules_of(name: str, value: Any) -> tuple[Rule, ...]:
    """Of initialize's argument `name`: one rule or several. Raises TypeError."""
    is_one = isinstance(value, str) or not isinstance(value, Iterable)
    rules = (value,) if is_one else tuple(value)
    for rule in rules:
        is_other_class = isinstance(rule, type) and not issubclass(rule, torch.nn.Module)
        if is_other_class or not (isinstance(rule, str) or callable(rule)):
            raise TypeError(
                f"initialize: expected {name} to be names of modules, classes of modules or "
                f"functions of name and module, got {rule!r}"
            )
    return rules


class Kept:
    """The modules of some models that a tuple of rules keeps in float32, with all that is in them.

    is_marked: a further rule, which need not match.

    Raises ValueError for a name or a class that no model has, and for modules of DTensors.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        rules: tuple[Rule, ...] = (),
        is_marked: Callable[[str, torch.nn.Module], bool] = lambda name, module: False,
    ) -> None:
        #: The outermost ones, whose calls cast.
        self.outermost: list[torch.nn.Module] = []
        self._all: set[torch.nn.Module] = set()
        unused = {rule for rule in rules if isinstance(rule, (str, type))}
        for model in models:
            for name, module in model.named_modules():
                matching = [rule for rule in (*rules, is_marked) if _matches(rule, name, module)]
                unused.difference_update(matching)
                if matching and module not in self._all:
                    self.outermost.append(module)
                    self._all.update(module.modules())
        if unused:
            raise ValueError(
                "initialize: expected keep_fp32 to name modules in the models, got "
                f"{', '.join(sorted(map(repr, unused)))}"
            )
        _check_plain(self.outermost)

    def __contains__(self, module: torch.nn.Module) -> bool:
        return module in self._all


def _matches(rule: Rule, name: str, module: torch.nn.Module) -> bool:
    if isinstance(rule, str):
        return bool(name) and rule == name
    if isinstance(rule, type):
        return isinstance(module, rule)
    return bool(rule(name, module))


def _check_plain(modules: Iterable[torch.nn.Module]) -> None:
    for module in modules:
        if any(is_dtensor(param) for param in module.parameters()):
            raise ValueError(
                "initialize: expected keep_fp32 to be modules of plain tensors, got a "
                f"{type(module).__name__} of DTensors; give it a MixedPrecisionPolicy of its own "
                "in fully_shard"
            )


#: Of no module.
NONE = Kept([])

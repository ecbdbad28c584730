"""Stage 2: cast. What initialize's keep_fp32 leaves in float32, at every level."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Union

import torch

from torchamp._shards import is_dtensor

#: The name of a module or buffer in the model, or of an argument of its forward; a module's class,
#: or a predicate of both name and module.
Rule = Union[str, type[torch.nn.Module], Callable[[str, torch.nn.Module], bool]]

_BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def rules_of(name: str, value: Any) -> tuple[Rule, ...]:
    """Of initialize's argument `name`: one rule or several. Raises TypeError."""
    is_one = isinstance(value, str) or not isinstance(value, Iterable)
    rules = (value,) if is_one else tuple(value)
    for rule in rules:
        is_other_class = isinstance(rule, type) and not issubclass(rule, torch.nn.Module)
        is_module = isinstance(rule, torch.nn.Module)
        if is_other_class or is_module or not (isinstance(rule, str) or callable(rule)):
            raise TypeError(
                f"initialize: expected {name} to be names, classes of modules or functions of "
                f"name and module, got {rule!r}"
            )
    return rules


class Kept:
    """What a tuple of rules keeps in float32: modules of some models, with all that is in them,
    buffers, and arguments of forward that have the name of neither.

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
        self._all: set[torch.nn.Module | torch.Tensor] = set()
        unused = {rule for rule in rules if isinstance(rule, (str, type))}
        for model in models:
            for name, module in model.named_modules():
                matching = [rule for rule in (*rules, is_marked) if _matches(rule, name, module)]
                unused.difference_update(matching)
                if matching and module not in self._all:
                    self.outermost.append(module)
                    self._all.update(module.modules())
            for name, buffer in model.named_buffers(remove_duplicate=False):
                if name in rules:
                    unused.discard(name)
                    self._all.add(buffer)
        self._arguments = {name for name in unused if any(_keys(each, name) for each in models)}
        unused -= self._arguments
        if unused:
            raise ValueError(
                "initialize: expected keep_fp32 to name modules or buffers in the models, or "
                f"arguments of their forward, got {', '.join(sorted(map(repr, unused)))}"
            )
        _check_plain(self.outermost)

    def __contains__(self, module_or_buffer: torch.nn.Module | torch.Tensor) -> bool:
        return module_or_buffer in self._all

    def __bool__(self) -> bool:
        return bool(self._all or self._arguments)

    def inputs_of(self, model: torch.nn.Module) -> tuple[int | str, ...]:
        """The places and names by which calls of the model may give it kept arguments."""
        return tuple(key for name in self._arguments for key in _keys(model, name))


def _keys(model: torch.nn.Module, argument: Any) -> list[int | str]:
    parameters = inspect.signature(model.forward).parameters
    kind = parameters[argument].kind if argument in parameters else None
    keys: list[int | str] = [list(parameters).index(argument)] if kind in _BY_PLACE else []
    return [*keys, argument] if kind in _BY_NAME else keys


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

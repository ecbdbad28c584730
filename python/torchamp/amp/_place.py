"""Stage 7: where optimizers find their masters. The methods of an optimizer's class are replaced,
once, by functions that ask whether the optimizer is in training; the class stays the user's.

torch's Optimizer wraps each class's `step` once, for profilers and hooks. The function inside that
wrapper is replaced, so that a `step` which a scheduler or a program has captured before is reached
too, and hooks run around it. Where the wrapper is not as torch 2.6 to 2.15 make it, the class's own
attribute is replaced.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from torchamp._load import _C
from torchamp.optimizers import FusedOptimizer

#: What is called instead of a method, with the optimizer, the method and its arguments.
Around = Callable[[Any, Callable, tuple, dict[str, Any]], Any]

#: The code of torch's wrapper.
_WRAPPER = Optimizer.profile_hook_step(lambda self: None).__code__


class Place:
    """Replaces methods of classes. around_step: what is called instead of `step`. around_others:
    instead of a class's own methods, which may touch parameters, as a `train()` that swaps averages
    in. around_inherited: instead of torch's Optimizer's, by name."""

    def __init__(
        self, around_step: Around, around_others: Around, around_inherited: Mapping[str, Around]
    ) -> None:
        self._around_step = around_step
        self._around_others = around_others
        self._around_inherited = around_inherited
        self._known: weakref.WeakSet[type] = weakref.WeakSet()

    def install(self, kind: type) -> None:
        """Replaces the methods of an optimizer's class and its bases."""
        if FusedOptimizer.around_step is None:
            # Contents that are exchanged are no business of a graph's.
            self._around_step = torch.compiler.disable(self._around_step)
            register_optimizer_step_pre_hook(self._discover)
            FusedOptimizer.around_step = staticmethod(self._around_step)
        for name, around in self._around_inherited.items():
            if not hasattr(getattr(kind, name), "is_torchamps"):
                setattr(kind, name, _around(getattr(kind, name), around))
        for base in kind.__mro__:
            if not issubclass(base, Optimizer) or base in self._known or base is Optimizer:
                continue
            is_torchamps = base.__module__.startswith("torchamp.")
            if not is_torchamps or not issubclass(base, FusedOptimizer):
                self._replace_step(base)
            if not base.__module__.startswith(("torchamp.", "torch.")):
                self._replace_others(base)
            self._known.add(base)

    def install_unhooked(self) -> None:
        """Replaces `step` of the classes that torch's hooks do not reach: wrappers of an optimizer
        that do not call Optimizer's __init__."""
        for kind in _subclasses(Optimizer):
            is_reached = kind.__module__.startswith(("torch.", "torchamp."))
            if not is_reached and _cell_of(vars(kind).get("step")) is None:
                self._replace_step(kind)

    def _discover(self, optimizer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """A hook of all optimizers' steps: reaches those that step another's parameters, such as
        one inside a wrapper, before they do."""
        if type(optimizer) not in self._known and _C.owners(optimizer.param_groups):
            self.install(type(optimizer))

    #: Tells FusedOptimizer that it is no hook of the program's.
    _discover.is_torchamps = True  # type: ignore[attr-defined]

    def _replace_step(self, base: type) -> None:
        step = vars(base).get("step")
        cell = _cell_of(step)
        own = cell.cell_contents if cell is not None else step
        if own is None or hasattr(own, "is_torchamps"):
            return
        if cell is not None:
            cell.cell_contents = _around(own, self._around_step)
        elif isinstance(own, types.FunctionType):
            setattr(base, "step", _around(own, self._around_step))  # noqa: B010

    def _replace_others(self, base: type) -> None:
        for name, method in list(vars(base).items()):
            is_own = isinstance(method, types.FunctionType) and not hasattr(Optimizer, name)
            if is_own and not name.startswith("_") and not hasattr(method, "is_torchamps"):
                setattr(base, name, _around(method, self._around_others))


def _subclasses(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _around(method: Callable, around: Around) -> Callable:
    @functools.wraps(method)
    def replaced(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return around(optimizer, method, args, kwargs)

    vars(replaced)["is_torchamps"] = True
    return replaced


def _cell_of(step: Any) -> types.CellType | None:
    """The cell in which torch's wrapper has what it wraps; None if `step` has no such wrapper."""
    while step is not None:
        if getattr(step, "__code__", None) is _WRAPPER:
            return step.__closure__[0] if len(step.__closure__ or ()) == 1 else None
        step = getattr(step, "__wrapped__", None)
    return None

"""Stage 7: which calls of optimizers are torchamp's. The methods of an optimizer's class are
replaced, once, by gates: a stranger's call passes, any other is torchamp's. The class stays the
user's.

torch's Optimizer wraps each class's `step` once, for profilers and hooks. The function inside that
wrapper is replaced, so that a `step` which a scheduler or a program has captured before is reached
too, and hooks run around it. Where the wrapper is not as torch 2.6 to 2.15 make it, the class's own
attribute is replaced.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from torchamp._load import _C
from torchamp.amp._optimizer.states import tell_copies
from torchamp.amp._run.session import OptimizerSession, in_training
from torchamp.optimizers import FusedOptimizer

#: What is called instead of a method, with the optimizer and the call of the method.
Around = Callable[[Any, functools.partial], Any]

#: The code of torch's wrapper.
_WRAPPER = Optimizer.profile_hook_step(lambda self: None).__code__


class _Known(weakref.ref[Any]):
    """An optimizer that initialize was not given."""

    __slots__ = ("given", "key")

    key: int
    #: The one with this one among its attributes, if initialize was given it.
    given: Callable[[], Any]


_known: dict[int, _Known] = {}
_strangers: dict[int, int] = OptimizerSession.strangers


def _forget(known: _Known) -> None:
    _known.pop(known.key, None)
    _strangers.pop(known.key, None)


def _note(optimizer: Any, given: Callable[[], Any]) -> None:
    known = _Known(optimizer, _forget)
    known.key, known.given = id(optimizer), given
    _known[known.key] = known


def note_inner(optimizer: Any, given: Any) -> None:
    """`given`, which initialize was given, has `optimizer` among its attributes."""
    _note(optimizer, weakref.ref(given))


def given_around(optimizer: Any) -> OptimizerSession | None:
    """What torchamp knows of the optimizer that has this one among its attributes."""
    known = _known.get(id(optimizer))
    return in_training(known.given()) if known is not None else None


def is_stranger(optimizer: Any) -> bool:
    """Whether initialize was not given it, nor one around it, and it steps no master; or it is
    still being made. Calls none of its methods but a property with its groups."""
    attributes = optimizer.__dict__
    if attributes.get("_torchamp") is not None:
        return False
    groups = attributes.get("param_groups")
    if groups is None and hasattr(type(optimizer), "param_groups"):  # a property
        groups = getattr(optimizer, "param_groups", None)
    if not groups or not isinstance(groups, list):
        return True
    return _strangers.get(id(optimizer)) == len(groups) or Gates.find_stranger(optimizer, groups)


class _Function:
    """A `step` of an optimizer's own, which does not take it, as a method."""

    def __init__(self, step: Callable) -> None:
        self.step = step

    def __call__(self, _: Any, *args: Any, **kwargs: Any) -> Any:
        return self.step(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        own = inspect.signature(self.step)
        optimizer = inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)
        return own.replace(parameters=[optimizer, *own.parameters.values()])


class Gates:
    """Gates methods. around_step: what is called instead of `step`. around_others: instead of a
    class's own methods, which may touch parameters, as a `train()` that swaps averages in.
    around_inherited: instead of torch's Optimizer's, by name."""

    def __init__(
        self, around_step: Around, around_others: Around, around_inherited: Mapping[str, Around]
    ) -> None:
        self._around_step = around_step
        self._around_others = around_others
        self._around_inherited = around_inherited
        #: The classes whose methods are gated, by id.
        self._kinds: dict[int, weakref.ref[type]] = {}

    @staticmethod
    def find_stranger(optimizer: Any, groups: list[Any]) -> bool:
        """is_stranger, of one that has yet to be looked at."""
        if given_around(optimizer) is not None or _C.owners(groups):
            return False
        if id(optimizer) not in _known:
            _note(optimizer, lambda: None)
            tell_copies(vars(optimizer).get("state", {}))
        if "defaults" in vars(optimizer):  # torch's constructor makes the groups after it
            _strangers[id(optimizer)] = len(groups)
        return True

    def install(self, optimizer: Any) -> None:
        """Gates the methods of an optimizer's class and its bases, and a `step` of its own."""
        self._install(type(optimizer))
        self.renew(optimizer)

    def renew(self, optimizer: Any) -> None:
        """Gates a `step` that the program has given the optimizer, or its class, since. One that
        says that it calls a gate needs none."""
        kind = type(optimizer)
        if not _is_gate(kind.step):
            self._install(kind)
        step = vars(optimizer).get("step")
        if step is None or any(map(_is_gate, _wrapped_by(step))):
            return
        is_method = isinstance(step, types.MethodType) and step.__self__ is optimizer
        own = step.__func__ if is_method else _Function(step)
        vars(optimizer)["step"] = types.MethodType(_gate(own, self._around_step), optimizer)

    def give_back(self, optimizer: Any) -> None:
        """Undoes what was done to the optimizer itself."""
        gate: Any = getattr(vars(optimizer).get("step"), "__func__", None)
        if _is_gate(gate):
            own = gate.__wrapped__
            is_method = not isinstance(own, _Function)
            vars(optimizer)["step"] = types.MethodType(own, optimizer) if is_method else own.step

    def install_unhooked(self) -> None:
        """Gates `step` of the classes that torch's hooks do not reach: wrappers of an optimizer
        that do not call Optimizer's __init__."""
        for kind in _subclasses(Optimizer):
            is_reached = kind.__module__.startswith(("torch.", "torchamp."))
            if not is_reached and _torchs_wrapper_in(vars(kind).get("step")) is None:
                self._gate_step(kind)

    def _install(self, kind: type[Optimizer]) -> None:
        if FusedOptimizer._gated_step is FusedOptimizer._fused_step:
            # Contents that are exchanged, and who owns them, are no business of a graph's.
            self._around_step = torch.compiler.disable(self._around_step)
            Gates.find_stranger = torch.compiler.disable(Gates.find_stranger)  # type: ignore
            FusedOptimizer._amps_hooks.add(register_optimizer_step_pre_hook(self._discoverer()).id)
            FusedOptimizer._gated_step = _gate(FusedOptimizer._fused_step, self._around_step)
        for name, around in self._around_inherited.items():
            if not _is_gate(getattr(kind, name)):
                setattr(kind, name, _gate(getattr(kind, name), around))
        for base in kind.__mro__:
            if issubclass(base, Optimizer) and base is not Optimizer:
                self._gate_step(base)
                self._gate_others(base)
        key = id(kind)
        self._kinds[key] = weakref.ref(kind, lambda _: self._kinds.pop(key, None))

    def _discoverer(self) -> Callable[[Any, tuple, dict[str, Any]], None]:
        """A hook of all optimizers' steps: reaches those that step another's parameters, such as
        one inside a wrapper, before they do."""
        kinds = self._kinds  # no attribute of `self`: strangers pay for each look-up

        def discover(optimizer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
            if id(type(optimizer)) not in kinds and not is_stranger(optimizer):
                self._install(type(optimizer))

        return discover

    def _gate_step(self, base: type[Optimizer]) -> None:
        """The `step` of our fused optimizers calls one that is gated."""
        step = vars(base).get("step")
        wrapper = _torchs_wrapper_in(step)
        own: Any = step if wrapper is None else wrapper.__closure__[0].cell_contents
        module = str(getattr(own, "__module__", ""))  # which may be None
        is_ours = issubclass(base, FusedOptimizer) and module.startswith("torchamp.")
        if wrapper is not None:
            if not _is_gate(own) and not is_ours:
                wrapper.__closure__[0].cell_contents = _gate(own, self._around_step)
            _mark(wrapper)
        elif is_ours:
            _mark(own)
        elif isinstance(own, types.FunctionType) and not _is_gate(own):
            setattr(base, "step", _gate(own, self._around_step))  # noqa: B010

    def _gate_others(self, base: type[Optimizer]) -> None:
        if base.__module__.startswith(("torchamp.", "torch.")):
            return
        for name, method in list(vars(base).items()):
            is_own = isinstance(method, types.FunctionType) and not hasattr(Optimizer, name)
            if is_own and not name.startswith("_") and not _is_gate(method):
                setattr(base, name, _gate(method, self._around_others))


def _subclasses(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _gate(method: Callable, around: Around) -> Callable:
    @functools.wraps(method)
    def gate(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
        groups = _strangers.get(id(optimizer))  # the quick way for a stranger
        if (groups is not None and groups == len(optimizer.param_groups)) or is_stranger(optimizer):
            # Strangers pay for arguments that are built again, of which a step mostly has none.
            return method(optimizer, *args, **kwargs) if args or kwargs else method(optimizer)
        return around(optimizer, functools.partial(method, optimizer, *args, **kwargs))

    _mark(gate)
    return gate


def _mark(gate: Callable) -> None:
    vars(gate)["torchamp_gate"] = id(gate)


def _is_gate(method: Any) -> bool:
    """Whether it is a gate, or calls one. functools.wraps copies marks, which count for another."""
    return getattr(method, "torchamp_gate", None) == id(method)


def _wrapped_by(step: Any) -> list[Any]:
    """`step`, and what it says that it wraps."""
    found = []
    while step is not None:
        found.append(getattr(step, "__func__", step))
        step = getattr(found[-1], "__wrapped__", None)
    return found


def _torchs_wrapper_in(step: Any) -> Any:
    """torch's wrapper, with what it wraps in its only cell; None if `step` has no such wrapper."""
    for each in _wrapped_by(step):
        if getattr(each, "__code__", None) is _WRAPPER:
            return each if len(each.__closure__ or ()) == 1 else None
    return None

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
from torchamp._logging import warn
from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._session import OptimizerSession, in_training
from torchamp.optimizers import FusedOptimizer

#: What is called instead of a method, with the optimizer, the method and its arguments.
Around = Callable[[Any, Callable, tuple, dict[str, Any]], Any]

#: The code of torch's wrapper.
_WRAPPER = Optimizer.profile_hook_step(lambda self: None).__code__


class _Known(weakref.ref[Any]):
    """An optimizer that initialize was not given."""

    __slots__ = ("generation", "given", "groups", "key")

    key: int
    #: The one with this one among its attributes, if initialize was given it.
    given: Callable[[], Any]
    #: When it stepped no master, with so many groups.
    generation: int
    groups: int


_known: dict[int, _Known] = {}


def _forget(known: _Known) -> None:
    _known.pop(known.key, None)


def _note(optimizer: Any, given: Callable[[], Any], generation: int, groups: int) -> None:
    known = _Known(optimizer, _forget)
    known.key, known.given = id(optimizer), given
    known.generation, known.groups = generation, groups
    _known[known.key] = known


def note_inner(optimizer: Any, given: Any) -> None:
    """`given`, which initialize was given, has `optimizer` among its attributes."""
    _note(optimizer, weakref.ref(given), -1, 0)


def given_around(optimizer: Any) -> OptimizerSession | None:
    """What torchamp knows of the optimizer that has this one among its attributes."""
    known = _known.get(id(optimizer))
    return None if known is None else in_training(known.given())


def is_stranger(optimizer: Any) -> bool:
    """Whether initialize was not given it, nor one around it, and it steps no master; or it is
    still being made. Calls none of its methods."""
    attributes = optimizer.__dict__
    if attributes.get("_torchamp") is not None:
        return False
    groups = attributes.get("param_groups")
    if groups is None and hasattr(type(optimizer), "param_groups"):  # a property
        groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return True
    generation = OptimizerSession.generation
    known = _known.get(id(optimizer))
    if (
        known is not None
        and known.generation == generation
        and known.groups == len(groups)
        and known() is optimizer
    ):
        return True
    if given_around(optimizer) is not None or _C.owners(list(groups)):
        return False
    _note(optimizer, _nothing, generation, len(groups))
    if known is None:
        _tell_copies(attributes.get("state", {}))
    return True


def _nothing() -> None: ...


def _tell_copies(states: Any) -> None:
    """Warns of an optimizer whose parameters have 16 bits, and their states 32: a copy, without its
    model, of one that initialize returned."""
    for param, state in states.items():
        is_narrow = isinstance(param, torch.Tensor) and param.dtype in LOW_PRECISION
        values = state.values() if is_narrow and isinstance(state, dict) else ()
        if any(isinstance(v, torch.Tensor) and v.shape == param.shape for v in values) and all(
            v.dtype == torch.float32 for v in values if isinstance(v, torch.Tensor)
        ):
            warn(
                "step: expected an optimizer that initialize returned, got one that steps "
                "parameters of 16 bits by states of 32, as a copy without its model does; copy "
                "both: copy.deepcopy((model, optimizer)) gives them in float32"
            )
            return


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
        self._known: weakref.WeakSet[type] = weakref.WeakSet()

    def install(self, optimizer: Any) -> None:
        """Gates the methods of an optimizer's class and its bases, and a `step` of its own."""
        self._install(type(optimizer))
        self._gate_own_step(optimizer)

    def renew(self, optimizer: Any, state: OptimizerSession) -> None:
        """Gates a `step` that the program has given the optimizer, or its class, since."""
        if type(optimizer).step is not state.seen_step:
            self._install(type(optimizer))
            state.seen_step = type(optimizer).step
        self._gate_own_step(optimizer)

    def give_back(self, optimizer: Any) -> None:
        """Undoes what was done to the optimizer itself."""
        gate = getattr(vars(optimizer).get("step"), "__func__", None)
        if not hasattr(gate, "is_torchamps"):
            return
        own = gate.__wrapped__
        is_function = isinstance(own, _Function)
        vars(optimizer)["step"] = own.step if is_function else types.MethodType(own, optimizer)

    def install_unhooked(self) -> None:
        """Gates `step` of the classes that torch's hooks do not reach: wrappers of an optimizer
        that do not call Optimizer's __init__."""
        for kind in _subclasses(Optimizer):
            is_reached = kind.__module__.startswith(("torch.", "torchamp."))
            if not is_reached and _cell_of(vars(kind).get("step")) is None:
                self._gate_step(kind)

    def _install(self, kind: type[Optimizer]) -> None:
        if FusedOptimizer._gated_step is FusedOptimizer._fused_step:
            # Contents that are exchanged are no business of a graph's.
            self._around_step = torch.compiler.disable(self._around_step)
            register_optimizer_step_pre_hook(self._discover)
            FusedOptimizer._gated_step = _gate(FusedOptimizer._fused_step, self._around_step)
        for name, around in self._around_inherited.items():
            if not hasattr(getattr(kind, name), "is_torchamps"):
                setattr(kind, name, _gate(getattr(kind, name), around))
        for base in kind.__mro__:
            if not issubclass(base, Optimizer) or base is Optimizer:
                continue
            self._gate_step(base)
            if not base.__module__.startswith(("torchamp.", "torch.")) and base not in self._known:
                self._gate_others(base)
            self._known.add(base)

    def _discover(self, optimizer: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """A hook of all optimizers' steps: reaches those that step another's parameters, such as
        one inside a wrapper, before they do."""
        if not is_stranger(optimizer) and type(optimizer) not in self._known:
            self._install(type(optimizer))

    #: Tells FusedOptimizer that it is no hook of the program's.
    _discover.is_torchamps = True  # type: ignore[attr-defined]

    def _gate_step(self, base: type[Optimizer]) -> None:
        """Of a fused optimizer of ours what its `step` calls is gated."""
        step = vars(base).get("step")
        cell = _cell_of(step)
        own = cell.cell_contents if cell is not None else step
        if own is None or hasattr(own, "is_torchamps"):
            return
        if issubclass(base, FusedOptimizer) and own.__module__.startswith("torchamp."):
            return
        if cell is not None:
            cell.cell_contents = _gate(own, self._around_step)
        elif isinstance(own, types.FunctionType):
            setattr(base, "step", _gate(own, self._around_step))  # noqa: B010

    def _gate_own_step(self, optimizer: Any) -> None:
        """Gates a `step` that is the optimizer's own attribute, unless it leads to its class's."""
        step = vars(optimizer).get("step")
        if step is None or _leads_to_gate(step, type(optimizer)):
            return
        is_bound = isinstance(step, types.MethodType) and step.__self__ is optimizer
        own = step.__func__ if is_bound else _Function(step)
        vars(optimizer)["step"] = types.MethodType(_gate(own, self._around_step), optimizer)

    def _gate_others(self, base: type) -> None:
        for name, method in list(vars(base).items()):
            is_own = isinstance(method, types.FunctionType) and not hasattr(Optimizer, name)
            if is_own and not name.startswith("_") and not hasattr(method, "is_torchamps"):
                setattr(base, name, _gate(method, self._around_others))


def _subclasses(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _gate(method: Callable, around: Around) -> Callable:
    @functools.wraps(method)
    def gate(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_stranger(optimizer):
            return method(optimizer, *args, **kwargs)
        return around(optimizer, method, args, kwargs)

    vars(gate)["is_torchamps"] = True
    return gate


def _wrapped_by(step: Any) -> Iterator[Any]:
    """`step`, and what it says that it wraps."""
    while step is not None:
        step = getattr(step, "__func__", step)
        yield step
        step = getattr(step, "__wrapped__", None)


def _cell_of(step: Any) -> types.CellType | None:
    """The cell in which torch's wrapper has what it wraps; None if `step` has no such wrapper."""
    for each in _wrapped_by(step):
        if getattr(each, "__code__", None) is _WRAPPER:
            return each.__closure__[0] if len(each.__closure__ or ()) == 1 else None
    return None


def _leads_to_gate(step: Any, kind: type[Optimizer]) -> bool:
    """Whether it is a gate or the step of the class `kind`, or says that it wraps one."""
    cell = _cell_of(step)
    if cell is not None and hasattr(cell.cell_contents, "is_torchamps"):
        return True
    return any(hasattr(e, "is_torchamps") or e is kind.step for e in _wrapped_by(step))

"""Stage 7: step. The optimizer that initialize returns: the same object, stepping masters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from torchamp._arguments import type_of
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import shard_of
from torchamp.amp._copies import PlainState
from torchamp.amp._describe import describe_optimizer
from torchamp.amp._masters import AccessTracker, MasterList, adopt, mastered, params_of
from torchamp.amp._optimizer_states import check_whole, fitting, load_keeping_dtypes, plain_state_of
from torchamp.amp._report import announce_savings
from torchamp.amp._session import Session
from torchamp.amp._swap_class import Swapped, remade, restore_class, swap_class
from torchamp.optimizers import FusedOptimizer

if TYPE_CHECKING:
    from typing_extensions import TypeGuard


class AmpOptimizer(Swapped, torch.optim.Optimizer):
    """An optimizer that initialize returned."""

    _torchamp: OptimizerState

    def step(self, closure: Callable | None = None) -> Any:
        """Steps, unless a backward since the last step overflowed; then nothing changes but that
        the masters' grads are dropped, and None is returned.

        Raises RuntimeError for a closure where the loss is scaled or masters are stepped, and
        where grads are still scaled.
        """
        state = self._torchamp
        state.follow(self, "step")
        self._opt_called = True
        inner = state.inner_step or super().step
        if closure is not None:
            _check_closure(state)
            inner = functools.partial(inner, closure)
        return _step(self, state, inner, has_closure=closure is not None)

    #: Tells torch's Optimizer that the original class's profiler hook is enough, and torch's
    #: schedulers that this counts the call: step sets _opt_called.
    vars(step).update(hooked=True, _wrapped_by_lr_sched=True)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the original, for the grads of the model's parameters and of the masters."""
        state = self._torchamp
        set_to_none = args[0] if args else kwargs.get("set_to_none", True)
        with suppress_accesses([state]):
            super().zero_grad(*args, **kwargs)
        with state.session.shards.mirrored():
            state.core.zero_grad(bool(set_to_none))
        if state.core.warning:
            warn(state.core.warning)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the original; masters take the place of the group's low-precision parameters, in
        `param_group` itself."""
        state = self._torchamp
        state.follow(self, "add_param_group")
        state.session.let_go(but=self)
        before = dict(param_group) if isinstance(param_group, dict) else None
        stepped = set(self.state)
        with state.accesses.suppress():
            super().add_param_group(param_group)
        try:
            _check_new(state, param_group["params"])
        except ValueError:
            self.param_groups.pop()
            for param in set(self.state) - stepped:
                del self.state[param]
            param_group.clear()
            param_group.update(before)
            raise
        state.adopt_group(self, param_group, {}, "add_param_group")

    def __repr__(self) -> str:
        """As the original, and a line that says what it steps."""
        state = self._torchamp
        with state.accesses.suppress():
            own = describe_optimizer(state.session, state.core)
            return f"{super().__repr__()}\n{own}"

    def state_dict(self) -> dict[str, Any]:
        """As the original's."""
        self._torchamp.follow(self, "state_dict")
        with self._torchamp.accesses.suppress():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the original's; states that it has already, such as Adagrad's float32 sums of float16
        parameters, keep their dtype."""
        check_whole(state_dict, "load_state_dict")
        self._torchamp.follow(self, "load_state_dict")
        with self._torchamp.accesses.suppress():
            load_keeping_dtypes(self, super().load_state_dict, state_dict)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        """Copies and pickles are plain optimizers of the model's parameters in float32."""
        function, args, own, *items = super().__reduce_ex__(protocol)
        return remade, (AmpOptimizer, function, args), plain_state_of(self, own), *items

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, PlainState):
            state.set(super().__setstate__)
            restore_class(self)
        else:
            super().__setstate__(state)


def _check_closure(state: OptimizerState) -> None:
    if state.core.has_masters or not state.session.scalers.are_identity:
        raise RuntimeError(
            "step: expected no closure at opt_level "
            f"{state.session.settings.properties.opt_level}, where the loss is scaled or masters "
            "are stepped; run the backward in scale_loss, then call step()"
        )


def _check_new(state: OptimizerState, params: list[torch.Tensor]) -> None:
    for i, param in enumerate(params):
        if state.core.steps(shard_of(param)):
            raise ValueError(
                f"add_param_group: expected params[{i}], of sizes {list(param.shape)}, to be in no "
                "other group, got one that the optimizer steps already"
            )
        check_owner("add_param_group", f"params[{i}]", param, state)


def check_owner(function: str, what: str, param: torch.Tensor, state: OptimizerState) -> None:
    """Raises ValueError if `param` has a master that another optimizer than that of `state`
    steps."""
    found = mastered(param)
    if found is None or state.core.steps(param):
        return
    for other in state.session.optimizers():
        if other._torchamp.core.steps(param):
            name = state.session.reporter.name_of(param)
            raise ValueError(
                f"{function}: expected {what} to be in one optimizer, since it has a float32 "
                f"master, got {name}, which {type(other).__name__} steps too; {ONE_OWNER}"
            )


#: What to do where two optimizers are to step one parameter.
ONE_OWNER = (
    "make one optimizer with two groups, or train in phases: amp.release(model), then initialize "
    "with the other optimizer"
)


def _step(
    optimizer: torch.optim.Optimizer, state: OptimizerState, inner: Callable, *, has_closure: bool
) -> Any:
    session = state.session
    for observe in state.observers:
        observe()
    with (
        session.shards.mirrored(),
        _C.Step(
            state.core,
            session.scalers,
            state.accesses.suppressions,
            steps_fused(optimizer),
        ),
    ):
        session.shards.publish()
        if state.core.warning and not has_closure:  # whose grads are yet to come
            warn(state.core.warning)
        result = _step_unless_overflowed(optimizer, state, inner)
    state.check_skips()
    return result


def _step_unless_overflowed(
    optimizer: torch.optim.Optimizer, state: OptimizerState, inner: Callable
) -> Any:
    found_inf = None if steps_fused(optimizer) else state.core.found_inf()
    if found_inf is None:
        return inner()
    if not can_skip_on_device(optimizer):
        return None if found_inf.item() else inner()
    with _C.TemporaryItems(vars(optimizer), {"found_inf": found_inf, "grad_scale": None}):
        return inner()


def adopt_optimizer(
    optimizer: torch.optim.Optimizer,
    session: Session,
    masters: dict[torch.Tensor, torch.Tensor],
) -> None:
    """Makes `optimizer` an AmpOptimizer of `session` and puts masters in its groups: those of
    `masters`, by parameter, and new ones for other parameters of low precision."""
    state = OptimizerState(session, optimizer.__dict__.pop("step", None))
    if steps_fused(optimizer):
        optimizer.amp_state = state.core
        state.core.lazy = not session.settings.options["materialize_master_grads"]
    for group in optimizer.param_groups:
        state.adopt_group(optimizer, group, masters, "initialize")
    if steps_fused(optimizer) and session.settings.options["verbosity"] > 0:
        with state.accesses.suppress():
            announce_savings(optimizer, state.core)
    optimizer.__dict__["_torchamp"] = state
    swap_class(optimizer, AmpOptimizer)
    session.add_optimizer(optimizer)


def state_of(optimizer: Any, where: str) -> OptimizerState:
    """What torchamp knows of `optimizer`, called `where` in messages. Raises RuntimeError if
    initialize did not return it."""
    if not isinstance(optimizer, AmpOptimizer):
        raise RuntimeError(
            f"{where} to be an optimizer that initialize returned, got {type_of(optimizer)} "
            "that it did not; pass it to initialize with its model"
        )
    return optimizer._torchamp


def suppress_accesses(states: Sequence[OptimizerState]) -> _C.Suppressed:
    """A context in which accesses to the optimizers' masters do not count."""
    return _C.Suppressed([state.accesses.suppressions for state in states])


class OptimizerState:
    """What one optimizer steps, the accesses to its masters, and what is reported of its steps."""

    def __init__(self, session: Session, inner_step: Callable | None) -> None:
        self.session = session
        self.report = _C.LateReport()
        self.core = _C.OptimizerState(observer=self.report)
        if session.settings.options["adopt_data_writes"]:
            self.core.adopt_data_writes()
        #: A step that was bound to the object before initialize: a profiler's, a scheduler's.
        self.inner_step = inner_step
        #: Accesses to the masters, as long as their grads are deferred.
        self.accesses = AccessTracker(self.core)
        #: Called before each step.
        self.observers: list[Callable[[], None]] = []
        session.states.append(self.core)

    def __reduce__(self) -> tuple:
        """Copies and pickles of the optimizer belong to no session: None takes this place."""
        return type(None), ()

    def follow(self, optimizer: torch.optim.Optimizer, function: str) -> None:
        """Steps what the groups hold now, which the program may have edited. Raises ValueError,
        which names `function`, for a parameter whose master another optimizer steps."""
        if self.session.shards or self.core.holds(optimizer.param_groups):
            return
        self.session.let_go(but=optimizer)
        with self.accesses.suppress():
            for group in optimizer.param_groups:
                self.adopt_group(optimizer, group, {}, function)
            self.core.retain(function, params_of([optimizer]))

    def adopt_group(
        self,
        optimizer: torch.optim.Optimizer,
        group: dict[str, Any],
        masters: dict[torch.Tensor, torch.Tensor],
        function: str,
    ) -> None:
        """Puts masters in the place of parameters, in the group's own list, with their state."""
        keeps_masters = self.session.settings.keeps_masters
        params = group["params"]
        if not isinstance(params, list):
            params = group["params"] = list(params)
        self.session.add_shards(params)
        for i, param in enumerate(params):
            stepped = adopt(self.core, function, param, masters, keeps_masters)
            params[i] = stepped
            if param in optimizer.state:
                state = optimizer.state.pop(param)
                optimizer.state[stepped] = fitting(optimizer, group, state, stepped)
            if stepped is not param and self.core.lazy:
                self.accesses.cover(stepped)
        if self.core.lazy and not isinstance(params, MasterList):
            group["params"] = MasterList(params, self.accesses)

    def report_skips(self) -> list[_C.SkippedStep]:
        """Reports the steps that are known by now to be skipped. Returns them."""
        known = self.report.flush()
        for skipped in known:
            self.session.reporter.report_skip(skipped, self.core)
        return known

    def check_skips(self) -> None:
        """The same. Raises RuntimeError after max_consecutive_skips in a row."""
        for skipped in self.report_skips():
            self.session.reporter.check_skip(skipped)

    def telemetry(self) -> Telemetry:
        """What is known of the steps since the first call."""
        self.report_skips()
        return Telemetry(*self.report.known())


@dataclasses.dataclass(frozen=True)
class Telemetry:
    """What the host knows of an optimizer's steps. On CUDA the last ones may be missing."""

    steps: int = 0  #: since the first call of telemetry, with those that were skipped
    skipped_steps: int = 0
    stepped: bool | None = None  #: whether the last one known was a step, and not skipped
    loss_scales: tuple[float, ...] = ()  #: one a loss, as they were at that step


def steps_fused(optimizer: torch.optim.Optimizer) -> TypeGuard[FusedOptimizer]:
    """Whether it unscales and skips within its step: a program's subclass with a step of its own
    may not, and is treated as any other optimizer."""
    return isinstance(optimizer, FusedOptimizer) and optimizer._steps_fused


#: torch's optimizers that have a fused step.
FUSED_IN_TORCH = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def can_skip_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the next step can be skipped without the host knowing: fused optimizers, torch's and
    ours, leave everything as it is where they find their attribute `found_inf` set. Seeds momentum
    buffers, which torch leaves uninitialised if the step that makes them is skipped."""
    if steps_fused(optimizer):
        return True
    if not isinstance(optimizer, FUSED_IN_TORCH):
        return False
    if not all(group.get("fused") for group in optimizer.param_groups):
        return False
    return not isinstance(optimizer, torch.optim.SGD) or _seed_momentum(optimizer)


def _seed_momentum(optimizer: torch.optim.SGD) -> bool:
    """Gives parameters about to take their first step zeros as momentum buffer, to which that step
    adds the grad. With dampening the first step is another than the later ones, so there is
    nothing to seed and the host must decide: returns False."""
    for group in optimizer.param_groups:
        if group["momentum"] == 0:
            continue
        for param in group["params"]:
            state = optimizer.state[param] if param.grad is not None else {"momentum_buffer": 0}
            if state.get("momentum_buffer") is not None:
                continue
            if group["dampening"] != 0:
                return False
            state["momentum_buffer"] = torch.zeros_like(param.grad)
    return True

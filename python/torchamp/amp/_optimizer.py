"""Stage 7: step. The optimizer that initialize returns: the same object, stepping masters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

import torch

from torchamp._arguments import expect, type_of
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import shard_of
from torchamp.amp._masters import fitting, params_of
from torchamp.amp._session import OptimizerSession, Session, suppress_accesses
from torchamp.amp._swap_class import (
    PlainState,
    Swapped,
    plain_state,
    remade,
    restore_class,
    swap_class,
)
from torchamp.optimizers import FusedOptimizer

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]


class AmpOptimizer(Swapped, torch.optim.Optimizer):
    """An optimizer that initialize returned."""

    _torchamp: OptimizerSession

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
            if state.core.has_masters or not state.session.scalers.are_identity:
                raise RuntimeError(
                    "step: expected no closure at opt_level "
                    f"{state.session.settings.properties.opt_level}, where the loss is scaled or "
                    "masters are stepped; run the backward in scale_loss, then call step()"
                )
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
        """As the original; masters replace the group's low-precision parameters, in `param_group`
        itself."""
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
            params = state.core.params()
            masters = sum(param.has_master for param in params)
            return (
                f"{super().__repr__()}\n"
                f"torchamp: {len(params)} tensors, {masters} of them float32 masters, "
                f"{state.session.settings.properties}"
            )

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


def _check_new(state: OptimizerSession, params: list[torch.Tensor]) -> None:
    for i, param in enumerate(params):
        if state.core.steps(shard_of(param)):
            raise ValueError(
                f"add_param_group: expected params[{i}], of sizes {list(param.shape)}, to be in no "
                "other group, got one that the optimizer steps already"
            )
        state.core.check_free("add_param_group", param)


def _step(
    optimizer: torch.optim.Optimizer, state: OptimizerSession, inner: Callable, *, has_closure: bool
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
    optimizer: torch.optim.Optimizer, state: OptimizerSession, inner: Callable
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
    state = OptimizerSession(session, optimizer.__dict__.pop("step", None))
    if steps_fused(optimizer):
        optimizer.amp_state = state.core
        state.core.lazy = not session.settings.options["materialize_master_grads"]
    for group in optimizer.param_groups:
        state.adopt_group(optimizer, group, masters, "initialize")
    optimizer.__dict__["_torchamp"] = state
    swap_class(optimizer, AmpOptimizer)
    session.add_optimizer(optimizer)


def listed(function: str, name: str, values: Any) -> list:
    """Models or optimizers, or one, as a list. Raises TypeError, which names the function and the
    argument, for a tensor and for what cannot be iterated over."""
    if isinstance(values, (torch.nn.Module, torch.optim.Optimizer)):
        return [values]
    is_right = isinstance(values, Iterable) and not isinstance(values, torch.Tensor)
    expect(is_right, function, name, "one of them or a list", values)
    return list(values)


def state_of(optimizer: Any, where: str) -> OptimizerSession:
    """What torchamp knows of `optimizer`, called `where` in messages. Raises RuntimeError if
    initialize did not return it."""
    if not isinstance(optimizer, AmpOptimizer):
        raise RuntimeError(
            f"{where} to be an optimizer that initialize returned, got {type_of(optimizer)} "
            "that it did not; pass it to initialize with its model"
        )
    return optimizer._torchamp


def known_states(optimizers: list[torch.optim.Optimizer], function: str) -> list[OptimizerSession]:
    """The state of each of `optimizers`. Raises RuntimeError, which names `function`, unless
    initialize returned them all."""
    return [
        state_of(optimizer, f"{function}: expected optimizers[{i}]")
        for i, optimizer in enumerate(optimizers)
    ]


def states_of(
    optimizers: list[torch.optim.Optimizer], function: str, session: Session | None = None
) -> list[OptimizerSession]:
    """The states that known_states gives. Raises RuntimeError, too, unless initialize returned the
    optimizers in one call: the first one's, or `session`'s."""
    states = known_states(optimizers, function)
    for i, state in enumerate(states):
        if state.session is not (session or states[0].session):
            raise RuntimeError(
                f"{function}: expected optimizers[{i}] to come from the same initialize as the "
                "others, got one from another"
            )
    for optimizer, state in zip(optimizers, states):
        state.follow(optimizer, function)
    return states


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


def check_whole(state_dict: Any, function: str) -> None:
    """Raises RuntimeError for one rank's part of a state, as the former shard_masters made it."""
    if any("shard" in group for group in state_dict["param_groups"]):
        raise RuntimeError(
            f"{function}: expected the state of a whole optimizer, got one rank's part, which "
            "shard_masters made; load the model's state alone, which is whole"
        )


def plain_state_of(optimizer: Any, own: dict[str, Any]) -> PlainState:
    """The state of a copy of an AmpOptimizer. own: as the user's class gives it."""
    state = optimizer._torchamp
    state.follow(optimizer, "copy")
    params = {param.master: param.model for param in state.core.params()}
    cast_to = state.session.settings.properties.cast_model_type
    with state.accesses.suppress():
        stepped = [params.get(each, each) for each in params_of([optimizer])]
        plain = plain_state(own, stepped, cast_to)
        return plain._replace(own=_with_params(optimizer, own, params, dict(plain.values)))


def _with_params(
    optimizer: torch.optim.Optimizer,
    own: dict[str, Any],
    params: dict[torch.Tensor, torch.Tensor],
    values: dict[torch.Tensor, torch.Tensor],
) -> dict[str, Any]:
    """`own`, of optimizer.__getstate__(), with `params`, by master, instead of masters, and with
    states that fit `values`, by parameter."""
    groups, states = [], own["state"].copy()
    for group in own["param_groups"]:
        groups.append({**group, "params": [params.get(each, each) for each in group["params"]]})
        for stepped, param in zip(group["params"], groups[-1]["params"]):
            if stepped in states:
                value = values.get(param, param)
                states[param] = fitting(optimizer, group, states.pop(stepped), value)
    return {**own, "param_groups": groups, "state": states}


def load_keeping_dtypes(
    optimizer: torch.optim.Optimizer, load: Callable[[dict[str, Any]], Any], state_dict: Any
) -> None:
    """Calls `load`, torch's, which gives states the dtype of their parameter, except that states
    that the optimizer has already, such as Adagrad's float32 sums of float16 parameters, keep
    theirs."""
    dtypes = {(i, name): value.dtype for i, name, value in _tensors_of(optimizer)}
    load(state_dict)
    if isinstance(optimizer, FusedOptimizer):
        return
    saved_ids = [i for group in state_dict["param_groups"] for i in group["params"]]
    params = params_of([optimizer])
    for i, name, value in list(_tensors_of(optimizer)):
        dtype = dtypes.get((i, name), value.dtype)
        if dtype != value.dtype:
            saved = state_dict["state"][saved_ids[i]][name]
            optimizer.state[params[i]][name] = saved.to(value.device, dtype, copy=True)


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, str, torch.Tensor]]:
    """The optimizer's states, each with the number of its parameter and its name."""
    for i, param in enumerate(params_of([optimizer])):
        for name, value in optimizer.state.get(param, {}).items():
            if isinstance(value, torch.Tensor):
                yield i, name, value

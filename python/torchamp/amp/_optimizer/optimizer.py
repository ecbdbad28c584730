"""Stage 7: step. What the optimizers that initialize returns do: the same objects, of the same
class, stepping masters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Union

import torch

from torchamp._arguments import listed
from torchamp._load import _C
from torchamp._logging import warn
from torchamp._shards import shard_of
from torchamp.amp._casts.masters import LOW_PRECISION, listed_optimizers, mastered, params_of
from torchamp.amp._optimizer.closures import closure_of, with_closure
from torchamp.amp._optimizer.gate import Gates, given_around, note_inner
from torchamp.amp._optimizer.loans import lend_to_method
from torchamp.amp._optimizer.states import fit_states, is_scalar_state, keeps_wide_sums, made_narrow
from torchamp.amp._run.session import (
    Last,
    OptimizerSession,
    Session,
    in_training,
    is_disabled,
    state_of,
)
from torchamp.optimizers import FusedOptimizer

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]


def _states_of_params(optimizer: torch.optim.Optimizer) -> list[OptimizerSession]:
    """Its own, or those of the optimizers whose masters belong to parameters in its groups, or that
    of the one around it."""
    own = vars(optimizer).get("_torchamp")
    if own is not None:
        return [own]
    if owners := _C.owners(optimizer.param_groups):
        return [state for state in OptimizerSession.known if state.core in owners]
    around = given_around(optimizer)
    return [] if around is None else [around]


def _around_step(optimizer: torch.optim.Optimizer, call: functools.partial) -> Any:
    """Steps masters, unless a backward since the last step overflowed: then nothing changes but
    that the grads are given up, and None is returned."""
    states = _states_of_params(optimizer)
    if not states:  # those that own the masters are gone
        return call()
    loans: dict[_C.Loan, None] = {}
    is_open = False
    for state in states:
        loans.update(dict.fromkeys(state.open_loans))
        is_open |= state.open_step is not None
    if loans:
        with contextlib.ExitStack() as paused:
            for loan in loans:
                paused.enter_context(_C.PausedLoan(loan))
            return _around_step(optimizer, call)
    if is_open:
        return _call(call, states)
    found = closure_of(call) if len(call.args) > 1 or call.keywords else None
    if found is None:
        return _step(optimizer, states, call)
    place, closure = found
    if any(state.session.scalers.are_dynamic for state in states):
        _check_calls_closure_first(optimizer, call.func)
        with torch.enable_grad():
            loss = closure()
        _step(optimizer, states, with_closure(None, place, call))
        return loss
    around = functools.partial(_outside_of_step, states, closure)
    return _step(optimizer, states, with_closure(around, place, call), has_closure=True)


def _check_calls_closure_first(optimizer: torch.optim.Optimizer, step: Callable) -> None:
    """Raises RuntimeError unless the closure may be called before the step, which shows whether it
    is to be skipped."""
    is_torchs = _is_torchs(step) and _is_torchs(type(optimizer))
    is_right = is_torchs and not isinstance(optimizer, torch.optim.LBFGS)
    if not is_right and step is not FusedOptimizer._fused_step:
        raise RuntimeError(
            "step: expected a fixed loss scale for an optimizer that may call its closure several "
            "times, got a dynamic one, which skips steps; give initialize a loss_scale, or take O4 "
            "or O5, which need none. With an optimizer that needs the grads once, run the backward "
            "in scale_loss, then call step()"
        )


def _is_torchs(which: Any) -> bool:
    return str(which.__module__).startswith("torch.optim.")


def _outside_of_step(states: list[OptimizerSession], closure: Callable, *args: Any) -> Any:
    """Calls a closure where parameters and grads are the model's."""
    steps = [step for state in states if (step := state.open_step)]
    for step in steps:
        step.pause()
    result = closure(*args)
    for state in states:  # the step writes parameters after it
        state.unseen_steps.forget()
    for step in steps:
        step.resume()
    return result


def _step(
    optimizer: torch.optim.Optimizer,
    states: list[OptimizerSession],
    inner: functools.partial,
    *,
    has_closure: bool = False,
) -> Any:
    for state in states:
        for observe in state.observers:
            observe()
    step = functools.partial(_step_unless_overflowed, optimizer, states, inner, has_closure)
    is_fused = inner.func is FusedOptimizer._fused_step
    result = _lent(optimizer, states, step, writes_model=is_fused)
    for state in states:
        state.check_skips()
    return result


def _lent(
    optimizer: torch.optim.Optimizer,
    states: list[OptimizerSession],
    call: Callable[[], Any],
    *,
    writes_model: bool,
) -> Any:
    """`call()` where `optimizer` finds masters in its parameters, unless it writes the model."""
    state, *others = states
    state.follow(optimizer, "step")
    made = {} if isinstance(optimizer, FusedOptimizer) else optimizer.state
    _C.widen_states(made, state.narrow_names)
    known = len(made)
    lent = _C.Step(state.core, state.session.scalers, writes_model)
    state.note_step(lent)
    with state.session.shards.mirrored(), lent:
        state.session.shards.publish()
        lend = functools.partial(_lent, optimizer, others, call, writes_model=writes_model)
        result = lend() if others else call()
    if len(made) != known:
        state.narrow_names.update(made_narrow(made))
    return result


def _step_unless_overflowed(
    optimizer: torch.optim.Optimizer,
    states: list[OptimizerSession],
    inner: functools.partial,
    has_closure: bool,
) -> Any:
    for state in states:
        if state.core.warning and not has_closure:  # whose grads are yet to come
            warn(state.core.warning)
    if inner.func is FusedOptimizer._fused_step:
        return _call(inner, states)
    found = [each for state in states if (each := state.core.found_inf()) is not None]
    if not found:
        return inner()
    if len(states) > 1 or not (_is_torchs(inner.func) and can_skip_on_device(optimizer)):
        overflowed = [state.note_overflow() for state in states]
        return None if any(overflowed) else inner()
    with _C.TemporaryItems(vars(optimizer), {"found_inf": found[0], "grad_scale": None}):
        return inner()


def _call(step: functools.partial, states: list[OptimizerSession]) -> Any:
    """Calls a step; a fused one is told whose masters are stepped."""
    is_fused = step.func is FusedOptimizer._fused_step
    return step(amp_state=states[0].core) if is_fused else step()


def _around_others(optimizer: torch.optim.Optimizer, call: functools.partial) -> Any:
    """Calls a method of the optimizer's class that torch's Optimizer lacks."""
    states = [state for state in _states_of_params(optimizer) if state.core.has_masters]
    if not states or any(state.open_step or state.open_loans for state in states):
        return call()
    return lend_to_method(optimizer, states, call)


def _around_zero_grad(optimizer: torch.optim.Optimizer, call: functools.partial) -> Any:
    """Zeroes what scale_loss has set aside, too, and forgets overflows."""
    result = call()
    state: OptimizerSession | None = vars(optimizer).get("_torchamp")
    if state is None:
        return result
    gates.renew(optimizer)
    if state.open_step is None:
        with state.session.shards.mirrored():
            state.core.note_zeroed()
    return result


def _around_add_param_group(optimizer: torch.optim.Optimizer, call: functools.partial) -> None:
    """Raises ValueError, and adds nothing, for a parameter whose master another optimizer steps."""
    group: Any = call.args[1] if len(call.args) > 1 else call.keywords.get("param_group")
    before = dict(group) if isinstance(group, dict) else {}
    call()
    state = in_training(optimizer)
    if state is not None:
        try:
            state.follow(optimizer, "add_param_group")
        except ValueError:
            optimizer.param_groups.pop()
            group.clear()
            group.update(before)
            raise


gates = Gates(
    _around_step,
    _around_others,
    {"zero_grad": _around_zero_grad, "add_param_group": _around_add_param_group},
)


def adopt_optimizer(
    optimizer: torch.optim.Optimizer,
    session: Session,
    masters: dict[torch.Tensor, torch.Tensor],
) -> None:
    """Makes `optimizer` one of `session`, which steps the masters of its parameters: those of
    `masters`, by parameter, and new ones for others of 16 bits."""
    OptimizerSession.strangers.clear()
    state = OptimizerSession(session)
    if steps_fused(optimizer):
        optimizer.forget_layout()
        state.core.lazy = not session.settings.options["materialize_master_grads"]
    params = params_of([optimizer])
    session.add_shards(params)
    for param in params:
        state.core.add("initialize", shard_of(param), masters.get(param))
    fit_states(optimizer, params)
    state.note_float32(params)
    vars(optimizer)["_torchamp"] = state
    gates.install_unhooked()
    for each in (optimizer, *inner_of(optimizer)):
        if each is not optimizer:
            note_inner(each, optimizer)
        gates.install(each)
        has_hooks = hasattr(each, "_optimizer_load_state_dict_pre_hooks")
        if has_hooks and not isinstance(each, FusedOptimizer):
            session.members.hooks.append(each.register_load_state_dict_pre_hook(_note_loaded))
            session.members.hooks.append(each.register_load_state_dict_post_hook(_keep_float32))
    session.members.add_optimizer(optimizer)


def inner_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers among its attributes."""
    return [each for each in vars(optimizer).values() if isinstance(each, torch.optim.Optimizer)]


def states_of(
    function: str, optimizers: Optimizers | None, session: Session | None = None
) -> list[OptimizerSession] | None:
    """What torchamp knows of each of `optimizers`, one or several, which step what their groups
    hold now; None where there is no `session`, and initialize was given them, or was last called,
    with enabled=False.

    Raises:
        TypeError: for what is no optimizer.
        RuntimeError: for one that initialize did not return, or not in one call: the first one's,
            or `session`'s.
    """
    chosen = [] if optimizers is None else listed(function, "optimizers", optimizers)
    states: list[OptimizerSession] = []
    for i, optimizer in enumerate(chosen):
        state = in_training(optimizer)
        if state is None:
            if session is None and is_disabled(listed_optimizers(function, chosen)):
                return None
            state = state_of(function, optimizer, f"optimizers[{i}]")  # raises
        session = session or state.session
        if state.session is not session:
            raise RuntimeError(
                f"{function}: expected optimizers[{i}] to come from the same initialize as the "
                "others, got one from another"
            )
        states.append(state)
    if session is None and Last.is_disabled:
        return None
    for optimizer, state in zip(chosen, states):
        gates.renew(optimizer)
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


def _note_loaded(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Before torch's load_state_dict()."""
    for state in _states_of_params(optimizer):
        state.loaded = state_dict


def _keep_float32(optimizer: torch.optim.Optimizer) -> None:
    """After torch's load_state_dict(), which casts states to their parameter's dtype: those of
    parameters with masters, Adagrad's sums, and single numbers are float32."""
    saved: Any = None
    for state in _states_of_params(optimizer):
        saved, state.loaded = state.loaded, None
    if saved is None:
        return
    saved_ids = [i for group in saved["param_groups"] for i in group["params"]]
    for saved_id, param in zip(saved_ids, params_of([optimizer])):
        states = optimizer.state.get(param)
        is_wide = mastered(param) is not None or keeps_wide_sums(optimizer)
        if not isinstance(states, dict):
            continue
        for name, value in states.items():
            is_narrow = isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION
            if is_narrow and (is_wide or is_scalar_state(value, param)):
                given = saved["state"][saved_id][name]
                states[name] = given.to(value.device, torch.float32, copy=True)

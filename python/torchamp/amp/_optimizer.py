"""Stage 7: step. The optimizer that initialize returns: the same object, stepping masters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchamp._load import _C
from torchamp.amp._device_skip import can_skip_on_device, step_unless
from torchamp.amp._optimizer_state import OptimizerState
from torchamp.amp._report import announce_savings
from torchamp.amp._swap_class import Swapped, swap_class
from torchamp.optimizers import FusedOptimizer

if TYPE_CHECKING:
    from torchamp.amp._session import Session


class AmpOptimizer(Swapped):
    """An optimizer that initialize returned."""

    def step(self, closure: Callable | None = None) -> Any:
        """Steps, unless a backward since the last step overflowed; then nothing changes but that
        the masters' grads are dropped, and None is returned.

        Raises RuntimeError for a closure where the loss is scaled or masters are stepped, and
        where grads are still scaled.
        """
        state: OptimizerState = self._torchamp
        self._opt_called = True
        inner = state.inner_step or super().step
        if closure is not None:
            _check_closure(state)
            inner = _bind(inner, closure)
        with _C.ShieldFromAutocast(), state.watch.look_away():
            return _step(self, state, inner)

    #: Tells torch's Optimizer that the original class's profiler hook is enough, and torch's
    #: schedulers that this counts the call: step sets _opt_called.
    step.hooked = True
    step._wrapped_by_lr_sched = True

    def zero_grad(self, *args, **kwargs) -> None:
        """As the original, for the grads of the model's parameters and of the masters."""
        state: OptimizerState = self._torchamp
        with state.watch.look_away():
            super().zero_grad(*args, **kwargs)
        state.core.zero_grad(args[0] if args else kwargs.get("set_to_none", True))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the original; masters take the place of the group's low-precision parameters, in
        `param_group` itself."""
        before = dict(param_group) if isinstance(param_group, dict) else None
        state: OptimizerState = self._torchamp
        with state.watch.look_away():
            super().add_param_group(param_group)
        try:
            _check_new(state, param_group["params"])
        except ValueError:
            self.param_groups.pop()
            param_group.clear()
            param_group.update(before)
            raise
        state.adopt_group(self, param_group, {})

    def state_dict(self) -> dict[str, Any]:
        """As the original's."""
        with self._torchamp.watch.look_away():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the original's."""
        with self._torchamp.watch.look_away():
            super().load_state_dict(state_dict)


def _bind(step: Callable, closure: Callable) -> Callable:
    return lambda: step(closure)


def _check_closure(state: OptimizerState) -> None:
    if state.weights.has_masters or not state.session.is_identity:
        raise RuntimeError(
            "step: expected no closure at opt_level "
            f"{state.session.settings.properties.opt_level}, where the loss is scaled or masters "
            "are stepped; run the backward in scale_loss, then call step()"
        )


def _check_new(state: OptimizerState, params: list[torch.Tensor]) -> None:
    for i, param in enumerate(params):
        if any(weights.master_of(param) is not None for weights in state.session.weights):
            raise ValueError(
                f"add_param_group: expected params[{i}], of sizes {list(param.shape)}, to be in no "
                "other group, got one that an optimizer of this initialize steps already"
            )


def _step(optimizer: torch.optim.Optimizer, state: OptimizerState, inner: Callable) -> Any:
    state.core.begin_step("step", state.session.settings.adopt_data_writes)
    result = _step_unless_overflowed(optimizer, state, inner)
    if not isinstance(optimizer, FusedOptimizer):
        state.weights.copy_to_model()
    state.core.end_step(state.session.scalers)
    state.report_skips()
    return result


def _step_unless_overflowed(
    optimizer: torch.optim.Optimizer, state: OptimizerState, inner: Callable
) -> Any:
    found_inf = state.core.found_inf()
    if found_inf is None:
        return inner()
    if can_skip_on_device(optimizer):
        return step_unless(found_inf, optimizer, inner)
    return None if found_inf.item() else inner()


def adopt_optimizer(
    optimizer: torch.optim.Optimizer,
    session: Session,
    weights: _C.Masters,
    masters: dict[torch.Tensor, torch.Tensor],
) -> None:
    """Makes `optimizer` an AmpOptimizer of `session` and puts masters in its groups: those of
    `masters`, by parameter, and new ones for other parameters of low precision."""
    state = OptimizerState(session, weights, optimizer.__dict__.pop("step", None))
    if isinstance(optimizer, FusedOptimizer):
        optimizer.masters = weights
        weights.lazy = session.settings.keeps_masters and session.weights.count(weights) == 1
    for group in optimizer.param_groups:
        state.adopt_group(optimizer, group, masters)
    if isinstance(optimizer, FusedOptimizer):
        _save_memory(optimizer, state)
    optimizer._torchamp = state
    swap_class(optimizer, AmpOptimizer, lambda original: {})


def _save_memory(optimizer: FusedOptimizer, state: OptimizerState) -> None:
    if optimizer.split_masters and state.weights.lazy:
        state.weights.split()
    if state.session.settings.verbosity > 0:
        with state.watch.look_away():
            announce_savings(optimizer, state.weights)


def state_of(optimizer: Any, where: str) -> OptimizerState:
    """What torchamp knows of `optimizer`, called `where` in messages. Raises RuntimeError if
    initialize did not return it."""
    if not isinstance(optimizer, AmpOptimizer):
        raise RuntimeError(
            f"{where} to be an optimizer that initialize returned, got a "
            f"{type(optimizer).__name__} that it did not; pass it to initialize with its model"
        )
    return optimizer._torchamp

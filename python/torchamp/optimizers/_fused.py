"""The base of the fused optimizers: arguments, steps, state dicts, skipping on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import (
    ParamsT,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from torchamp._arguments import expect, is_boolean
from torchamp._load import _C
from torchamp._shards import Shards, is_dtensor, is_flattened
from torchamp.optimizers._layout import Layout, Stepper


class FusedOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose step is one pass over all parameters of a device.

    Parameters and grads may be float16, bfloat16, float32 and float64, mixed; states are kept in
    float32 (float64 for float64 parameters). Nothing waits for the device: learning rates may be
    tensors, and with the attributes `found_inf` and `grad_scale` of torch.amp's contract, or under
    torchamp.amp, an overflowed step changes nothing, without the host knowing.

    Stochastic rounding is up or down, with the probability that makes the mean right. Chance
    depends on the parameter's place, step and element alone, so runs repeat. State dicts load into
    optimizers with another state_dtype or stochastic_rounding.

    A subclass with a `step` of its own gets unscaled grads, and the host, which waits for the
    device, does not call it after an overflow, as with any other optimizer.

    Of DTensors (fully_shard, tensor parallelism) each rank steps its shard, and states are DTensors
    with the parameter's placements. FusedLAMB and FusedNovoGrad need norms of whole tensors, and
    take none.

    Args:
        params: parameters, or groups of them.
        defaults: the options of groups that have no others; a subclass takes them by name, among
            them lr, a float or a scalar tensor.
        state_dtype: torch.bfloat16 keeps states in 16 bits, with stochastic rounding, since to
            nearest most small changes would be lost.
        stochastic_rounding: True rounds bfloat16 parameters stochastically: small updates add up
            without a float32 master, as at opt_level O5 with master_weights=False.

    Raises:
        ValueError: for values outside of their range, for other dtypes, and for
            stochastic_rounding of float16.
        TypeError: for DTensors that it cannot step.
    """

    #: The attribute that torch.amp.GradScaler checks.
    _step_supports_amp_scaling = True

    #: A group's options: their ranges, and their columns in fused_step.
    options: _C.OptionTable

    #: The algorithm that keeps the most states.
    _largest_algorithm: _C.StepAlgorithm

    #: Options that a group must not switch on, and what to do instead.
    _refused: Mapping[str, str] = {}

    #: None if it must be made anew.
    _layout: Layout | None

    #: Whether a step can do with a shard of each parameter, as of DTensors.
    _takes_shards = True

    #: Whether a subclass has its own step, which torch hooks.
    _has_outer_step = False

    #: Whether step unscales and skips on the device: not that of a program's subclass, which may
    #: step by itself.
    _steps_fused = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._has_outer_step = cls.step is not FusedOptimizer.step
        if _overrides_step(cls):
            cls._steps_fused = False
            cls._step_supports_amp_scaling = vars(cls).get("_step_supports_amp_scaling", False)

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        *,
        state_dtype: torch.dtype = torch.float32,
        stochastic_rounding: bool = False,
    ) -> None:
        if state_dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"{type(self).__name__}: expected state_dtype to be torch.float32 or "
                f"torch.bfloat16, got {state_dtype}"
            )
        is_right, name = is_boolean(stochastic_rounding), type(self).__name__
        expect(is_right, name, "stochastic_rounding", "True or False", stochastic_rounding)
        self.state_dtype = state_dtype
        self.stochastic_rounding = stochastic_rounding
        super().__init__(params, defaults)
        self._layout = None

    def _init_with(self, arguments: dict[str, Any]) -> None:
        """The base's __init__, of the locals() of a subclass's: what the base does not take are a
        group's options."""
        own = ("self", "params", "state_dtype", "stochastic_rounding")
        FusedOptimizer.__init__(
            self,
            arguments["params"],
            {name: value for name, value in arguments.items() if name not in own},
            state_dtype=arguments["state_dtype"],
            stochastic_rounding=arguments["stochastic_rounding"],
        )

    def algorithm_of(self, group: dict[str, Any]) -> _C.StepAlgorithm:
        """The algorithm of the group.

        Raises:
            RuntimeError: for an option that is refused.
        """
        for name, remedy in self._refused.items():
            if group.get(name):
                raise RuntimeError(
                    f"{type(self).__name__}: expected {name} to be False, got {group[name]}; "
                    f"{remedy}"
                )
        return self._largest_algorithm

    @property
    def state_names(self) -> list[str]:
        """The names of the states that a parameter may have."""
        return _C.state_names(self._largest_algorithm)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's.

        Raises:
            ValueError: for values outside of their range.
        """
        if isinstance(param_group, dict):
            self._check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            self._check_shards(param_group["params"])
        except TypeError:
            self.param_groups.pop()
            raise
        # torch's ShardedGradScaler makes ranks agree in unscale_ alone, which an optimizer that
        # unscales in its step does without.
        if any(map(is_flattened, param_group["params"])):
            self._step_supports_amp_scaling = False

    def _check_shards(self, params: list[torch.Tensor]) -> None:
        for i, param in enumerate(params):
            if is_dtensor(param) and not self._takes_shards:
                raise TypeError(
                    f"{type(self).__name__}: expected params[{i}] to be whole, because steps need "
                    "its norm, got a DTensor; FusedAdam, FusedAdamW and FusedSGD step shards"
                )

    def _check_options(self, values: dict[str, Any]) -> None:
        self.options.check(type(self).__name__, values)
        self.algorithm_of(values)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every parameter that has a grad; returns what the closure returned.

        Raises:
            TypeError: for sparse grads, before anything is written.
        """
        return self._watched_step(closure) if self._is_watched() else self._step(closure)

    #: Tells torch's Optimizer that step runs its hooks, which cost as much as the host's part
    #: of the step itself.
    vars(step)["hooked"] = True

    def _is_watched(self) -> bool:
        """Whether a profiler or a hook is to hear of steps, and has not yet."""
        return not self._has_outer_step and bool(
            _profiler_enabled()
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_post_hooks
            or not _global_optimizer_pre_hooks.keys() <= self._amps_hooks
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        if not set_to_none or _profiler_enabled():
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            _C.drop_grads(group["params"])

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self._gated_step() if closure is None else self._gated_step(closure)

    def _fused_step(
        self,
        closure: Callable[[], Any] | None = None,
        amp_state: _C.OptimizerState | None = None,
    ) -> Any:
        """Steps all parameters. amp_state: torchamp.amp's, whose masters it steps."""
        loss = None
        if closure is not None:
            expect(callable(closure), "step", "closure", "a function or None", closure)
            with torch.enable_grad():
                loss = closure()
        layout = self._current_layout()
        steppers = [stepper.core for stepper in layout.steppers]
        grad_scale = getattr(self, "grad_scale", None)
        skip = getattr(self, "found_inf", None)
        if skip is not None:  # a number where torch's GradScaler has found no grad
            skip = torch.as_tensor(skip)
        if amp_state is None:
            grad_factor = None if grad_scale is None else grad_scale.float().reciprocal()
            with layout.shards.mirrored():
                _C.step_all(steppers, grad_factor, skip)
        elif grad_scale is None:
            _C.step_masters(steppers, amp_state, skip)
        else:
            raise RuntimeError(
                "step: expected grads unscaled by scale_loss, since initialize returned the "
                "optimizer, got those of a GradScaler; use scale_loss, or do not call initialize"
            )
        layout.publish_new_states(self.state)
        return loss

    #: What torchamp.amp replaces.
    _gated_step: Callable[..., Any] = _fused_step
    #: torchamp.amp's, by key, which are for other optimizers.
    _amps_hooks: ClassVar[set[int]] = set()

    _watched_step = torch.optim.Optimizer.profile_hook_step(_step)

    def _current_layout(self) -> Layout:
        """The layout for the groups, hyperparameters and states as they are now."""
        layout = self._known_layout()
        if layout is None:
            layout = self._layout = self._make_layout()
        for stepper in layout.steppers:
            stepper.update(self.options, self.param_groups)
        return layout

    def _known_layout(self) -> Layout | None:
        """None where the program has changed groups, parameters or states since."""
        layout = self._layout
        if layout is None:
            return None
        is_current = layout.seen_state.is_still(self.state)
        is_current &= len(layout.groups) == len(self.param_groups)
        for (algorithm, seen), group in zip(layout.groups, self.param_groups):
            is_same = algorithm is self.algorithm_of(group)
            is_current = is_current and is_same and seen.are_still(group["params"])
        if is_current:
            return layout
        layout.publish_new_states(self.state)  # of a step that was interrupted
        return None

    def _make_layout(self) -> Layout:
        groups = [
            (self.algorithm_of(group), _C.ParamsSnapshot(group["params"]))
            for group in self.param_groups
        ]
        members: dict[tuple, list[tuple[torch.Tensor, int]]] = {}
        shards = Shards()
        for index, (algorithm, _) in enumerate(groups):
            params = self.param_groups[index]["params"]
            self._check_shards(params)
            self._spread_count(self.param_groups[index])
            shards.add(params)
            for param in params:
                members.setdefault((algorithm, param.device), []).append((param, index))
        steppers = [
            Stepper(algorithm, placed, self.state_dtype, self.stochastic_rounding, self.state)
            for (algorithm, _), placed in members.items()
        ]
        return Layout(steppers, groups, _C.StateSnapshot(self.state), shards)

    def _spread_count(self, group: dict[str, Any]) -> None:
        """Gives states without a count that of their group, where apex keeps it."""
        for param in group["params"] if "step" in group else []:
            state = self.state.get(param)
            if state and "step" not in state:
                state["step"] = torch.tensor(float(group["step"]))

    def __getstate__(self) -> dict[str, Any]:
        kept = ("state_dtype", "stochastic_rounding")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._layout = None

    def forget_layout(self) -> None:
        """Makes the next step find anew what it steps."""
        self._layout = None

    def publish_states(self) -> None:
        """Makes `state` what steps have made of it, and of counts that were moved by `.data`."""
        layout = self._known_layout()
        if layout is not None:
            layout.publish_new_states(self.state)
            layout.republish_scalars(self.state)

    def state_dict(self) -> dict[str, Any]:
        """As torch's."""
        self.publish_states()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Like torch's, from this optimizer or from torch's of the same algorithm; states keep
        their precision, whatever the parameters' dtype. States without a count of steps have their
        group's, where apex keeps it."""
        for group in state_dict["param_groups"]:
            self.algorithm_of(group)  # before anything is loaded: it may refuse
        super().load_state_dict(state_dict)
        saved_ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for saved_id, param in zip(saved_ids, params):
            saved = state_dict["state"].get(saved_id)
            if saved is not None:
                self.state[param] = self._loaded_state(saved, param)
        self._layout = None

    def _loaded_state(self, saved: dict[str, Any], param: torch.Tensor) -> dict[str, Any]:
        state = dict(saved)
        dtype = torch.float64 if param.dtype == torch.float64 else self.state_dtype
        for name in self.state_names:
            if isinstance(saved.get(name), torch.Tensor):
                state[name] = saved[name].to(param.device, dtype, copy=True)
        return state


def _overrides_step(subclass: type[FusedOptimizer]) -> bool:
    """Whether the class, or a mixin before its first fused base, has a step of its own, and does
    not say that this is fused."""
    for base in subclass.__mro__:
        if base is not subclass and issubclass(base, FusedOptimizer):
            return False
        if "step" in vars(base):
            return "_steps_fused" not in vars(base)
    return False

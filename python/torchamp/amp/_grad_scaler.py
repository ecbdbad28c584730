"""torch.amp's GradScaler over torchamp's ops: for programs that scale by themselves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from torchamp import ops
from torchamp._arguments import expect, is_number, with_hints
from torchamp._load import _C
from torchamp._shards import Shards, is_flattened, mesh_groups_of, shard_of
from torchamp.amp._casts.autocast import is_missing
from torchamp.amp._casts.masters import LOW_PRECISION, check_optimizer, params_of
from torchamp.amp._optimizer.optimizer import FUSED_IN_TORCH, can_skip_on_device
from torchamp.amp._run.ranks import ProcessGroups, agreement_over, groups_of

#: Where growth ends: the largest power of two in float32.
_MAX_SCALE = 2.0**127

#: By keywords that a GradScaler lacks, what has them.
_INSTEAD = {
    "min_scale": "initialize has min_loss_scale",
    "max_scale": "initialize has max_loss_scale",
    "dtype": "autocast has it",
}


class GradScaler(torch.amp.GradScaler):
    """A torch.amp.GradScaler: its arguments, methods, errors and state dicts. What differs:

    * Grads may be float16, and of mixed dtypes. `unscale_` rounds a float16 grad to float16 again,
      so that small ones may be lost; fused optimizers unscale in their step, in float32.
    * scale goes into mappings and named tuples too, and scales 16-bit outputs in float32.
    * Fused optimizers skip on the device from the first step on: momentum buffers that torch's SGD
      would leave uninitialised are zeros.
    * skip_on_device=False lets the host skip every optimizer, at the cost of one wait per step: for
      libraries that take a step to be skipped where `optimizer.step` was not called.
    * The scale never falls below the smallest normal float32.
    * overflowed_params returns the parameters with an overflow.
    * process_group, a torch.distributed ProcessGroup or a list of those of a mesh, lets an overflow
      on one of its ranks skip the step of all and lower all their scales: one all-reduce of 4 bytes
      for each optimizer and iteration. All ranks must call the same methods; the first check, and
      the first after load_state_dict, compares their scales, and raises RuntimeError on all ranks
      if they differ. The ranks that have shards of the same DTensors always agree.

    `unscale_` and `step` raise RuntimeError for optimizers of amp.initialize, whose losses amp
    scales.
    """

    #: What an optimizer's checks before the last update found, by its id.
    _last_checks: dict[int, list[torch.Tensor]] = {}

    #: process_group, and the groups of DTensors.
    _groups: list[Any] = []
    #: None where ranks decide by themselves.
    _agreement: _C.Agreement | None = None
    _is_compared = False

    @with_hints("GradScaler", _INSTEAD)
    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        process_group: ProcessGroups | None = None,
        skip_on_device: bool = True,
    ) -> None:
        groups = groups_of("GradScaler", process_group)
        is_right = not isinstance(enabled, str)
        expect(is_right, "GradScaler", "enabled", "True or False", enabled)
        enabled = enabled and not is_missing("GradScaler", device)
        if enabled:
            _check_arguments(device, init_scale)
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._skip_on_device = skip_on_device
        self._agree_over(groups)

    def __repr__(self) -> str:
        """One line: scale and rule. Waits for the device, but not while a graph is captured."""
        if not self._enabled:
            return "GradScaler(enabled=False)"
        is_captured = self._device == "cuda" and torch.cuda.is_current_stream_capturing()
        scale = "on the device" if is_captured else f"{self.get_scale():g}"
        return (
            f"GradScaler(scale={scale}, growth_factor={self.get_growth_factor():g}, "
            f"backoff_factor={self.get_backoff_factor():g}, "
            f"growth_interval={self.get_growth_interval()}, device={self._device})"
        )

    def scale(self, outputs: Any) -> Any:
        """Returns `outputs`, a floating tensor, in float32, or lists and tuples of such, times the
        scale.

        Raises:
            TypeError: for anything else.
        """
        if not self._enabled:
            return outputs
        is_taken = isinstance(outputs, (torch.Tensor, list, tuple))
        expect(is_taken, "scale", "outputs", "a tensor or a list of such", outputs)
        is_low = isinstance(outputs, torch.Tensor) and outputs.dtype in LOW_PRECISION
        return super().scale(outputs.float() if is_low else outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the grads of the optimizer's parameters by the scale, in place, and checks them.

        Raises:
            RuntimeError: if they are unscaled or stepped since the last update already.
        """
        if self._enabled:
            _check_is_plain("unscale_", optimizer)
            self._agree_about("unscale_", params_of([optimizer]))
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales if `unscale_` did not, and steps unless a grad is not finite. Fused optimizers
        skip on the device, with skip_on_device; others cost one wait for it.

        Returns:
            What optimizer.step returns; None if the host skipped it.

        Raises:
            RuntimeError: for a closure, and for a second step since the last update.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        _check_is_plain("step", optimizer)
        if args and callable(args[0]):
            raise RuntimeError(
                "step: expected no closure, whose backward would not be scaled, got one; scale the "
                "loss and run its backward, then call step(optimizer)"
            )
        self._agree_about("step", params_of([optimizer]))
        with _claiming(optimizer, self._skip_on_device):
            return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Ends an iteration: backs off if a check since the last update found a grad that is not
        finite, else counts towards growth; or takes `new_scale`. Waits for nothing.

        Raises:
            AssertionError: if nothing was checked.
        """
        if not self._enabled:
            return
        checked = self._per_optimizer_states
        self._last_checks = {key: state.get("found", []) for key, state in checked.items()}
        if new_scale is None:
            self._apply_checks()
        else:
            super().update(float(new_scale) if isinstance(new_scale, int) else new_scale)

    def _apply_checks(self) -> None:
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        found_infs = [
            found_inf.to(scale.device, non_blocking=True)
            for state in self._per_optimizer_states.values()
            for found_inf in state["found_inf_per_device"].values()
        ]
        if not found_infs:
            raise AssertionError(
                "update: expected checked grads, got none; call step or unscale_ for an optimizer "
                "whose parameters have grads, or pass new_scale"
            )
        rule = ops.ScaleRule(
            growth_factor=self._growth_factor,
            backoff_factor=self._backoff_factor,
            growth_interval=self._growth_interval,
            min_scale=0.0,
            max_scale=_MAX_SCALE,
        )
        ops.update_scale(scale, growth_tracker, sum(found_infs), rule)
        self._per_optimizer_states.clear()

    def overflowed_params(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The optimizer's parameters in whose grads its last check, in this iteration or the one
        before, found a value that is not finite. Waits for the device."""
        check_optimizer("overflowed_params", optimizer)
        if not self._enabled:
            return []
        key = id(optimizer)
        last = self._last_checks.get(key, [])
        found = self._per_optimizer_states.get(key, {}).get("found", last)
        params = params_of([optimizer])
        indices = {i for flags in found for i in flags.nonzero().flatten().tolist()}
        return [params[i] for i in sorted(indices)]

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        """torch's hook for unscale_. Returns the flags by device."""
        return self._check(optimizer, inv_scale)

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, torch.Tensor]:
        """torch's hook for optimizers that unscale in their step. Returns the flags by device."""
        found_infs = self._check(optimizer)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found_infs
        return found_infs

    def _check(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor | None = None
    ) -> dict[torch.device, torch.Tensor]:
        """Checks the grads, and unscales them if given `inv_scale`. Returns the flags by device."""
        params = params_of([optimizer])
        with Shards(params).mirrored():
            checks = _C.check_grads([shard_of(param) for param in params], inv_scale)
        self._per_optimizer_states[id(optimizer)]["found"] = [flags for *_, flags in checks]
        found_infs = {device: found_inf for device, found_inf, _ in checks}
        return found_infs if self._agreement is None else self._agreed(self._agreement, found_infs)

    def _agree_about(self, method: str, params: list[torch.Tensor]) -> None:
        """Raises RuntimeError where ranks have other parts of parameters, and cannot agree."""
        self._agree_over(mesh_groups_of(params))
        if self._agreement is None and any(map(is_flattened, params)):
            raise RuntimeError(
                f"{method}: expected process_group with parameters of FullyShardedDataParallel, of "
                "which each rank has another part, got None; pass it to GradScaler"
            )
        self._compare_ranks()

    def _agree_over(self, groups: list[Any]) -> None:
        """Makes the ranks of `groups` agree, too, from now on."""
        new = [group for group in groups if group not in self._groups]
        if new:
            self._groups = [*self._groups, *new]
            self._agreement = agreement_over(self._groups)
            self._is_compared = False

    def _agreed(
        self, ranks: _C.Agreement, found_infs: dict[torch.device, torch.Tensor]
    ) -> dict[torch.device, torch.Tensor]:
        """What any rank has found. This one may have no grads."""
        scale = self._check_scale_growth_tracker("step")[0]
        found_inf = torch.zeros((), device=scale.device)
        for each in found_infs.values():
            found_inf = torch.maximum(found_inf, each.to(scale.device, non_blocking=True))
        ranks.all_reduce_max(found_inf)
        devices = found_infs or [scale.device]
        return {device: found_inf.to(device, non_blocking=True) for device in devices}

    def _compare_ranks(self) -> None:
        """Raises RuntimeError unless all ranks have the same scale; once."""
        if self._agreement is None or self._is_compared or self._scale is None:
            return
        if self._scale.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        scale, growth_tracker = self._check_scale_growth_tracker("step")
        self._agreement.check_same_state(scale.item(), int(growth_tracker), scale.device)
        self._is_compared = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, on every rank."""
        super().load_state_dict(state_dict)
        self._is_compared = False

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_last_checks": {}, "_is_compared": False}
        for name in ("_agreement", "_groups"):
            state.pop(name, None)  # of this process
        return state


def _check_arguments(device: Any, init_scale: Any) -> None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"GradScaler: expected device to be a type of devices, as 'cuda', got {device!r}"
        ) from None
    expect(is_number(init_scale), "GradScaler", "init_scale", "a number", init_scale)
    if not 0 < float(init_scale) < math.inf:
        raise ValueError(
            f"GradScaler: expected init_scale to be positive and finite, got {init_scale}"
        )


def _check_is_plain(method: str, optimizer: torch.optim.Optimizer) -> None:
    check_optimizer(method, optimizer)
    if getattr(optimizer, "_torchamp", None) is not None:
        raise RuntimeError(
            f"{method}: expected an optimizer not returned by amp.initialize, which scales losses "
            "by amp.scale_loss, got one that is; use scale_loss, or do not call initialize"
        )


@contextlib.contextmanager
def _claiming(optimizer: torch.optim.Optimizer, skip_on_device: bool) -> Iterator[None]:
    """A context in which torch lets the optimizer skip on the device if it is to and can: all
    groups of torch's own must be fused, and SGD's momentum buffers there."""
    claims = getattr(optimizer, "_step_supports_amp_scaling", False)
    can = can_skip_on_device(optimizer) if isinstance(optimizer, FUSED_IN_TORCH) else claims
    if claims == (skip_on_device and can):
        yield
        return
    vars(optimizer)["_step_supports_amp_scaling"] = skip_on_device and can
    try:
        yield
    finally:
        vars(optimizer)["_step_supports_amp_scaling"] = claims

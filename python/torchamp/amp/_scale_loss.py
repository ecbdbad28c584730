"""Stages 4 to 6, around a backward: scale the loss, unscale and check grads, update the scale; and
clipping, which comes after."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import distributed

from torchamp._arguments import expect, is_boolean, is_number
from torchamp._load import _C
from torchamp._shards import counted_elsewhere, mesh_groups_of, shard_of
from torchamp.amp._optimizer import OptimizerState
from torchamp.amp._ranks.dtensor import leave_unsynced
from torchamp.amp._session import Session


class LossContext(Protocol):
    """What amp.scale_loss returns."""

    def __enter__(self) -> torch.Tensor:
        """The scaled loss."""

    def __exit__(self, kind: object, /, *others: object) -> None:
        """Unscales and checks the grads, and updates the loss scale."""

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """All of it: the scaled loss's backward, with these arguments, in the context."""
        with self as scaled_loss:
            scaled_loss.backward(*args, **kwargs)


class PlainLoss(contextlib.nullcontext, LossContext):
    """That of an initialize which is not enabled."""


class ScaledLoss(_C.Backward):
    """That of one which is; see amp.scale_loss. Grads and scaler are as before also if
    an interrupt drops it before it ends."""

    def __init__(
        self,
        session: Session,
        states: Sequence[OptimizerState],
        loss: torch.Tensor,
        loss_id: int,
        delay_unscale: bool | None,
        delay_overflow_check: bool,
    ) -> None:
        is_right = delay_unscale is None or is_boolean(delay_unscale)
        expect(is_right, "scale_loss", "delay_unscale", "True, False or None", delay_unscale)
        is_right = is_boolean(delay_overflow_check)
        expect(
            is_right, "scale_loss", "delay_overflow_check", "True or False", delay_overflow_check
        )
        super().__init__(
            [state.core for state in states],
            session.scaler(loss_id, "scale_loss"),
            loss_id,
            _is_unsynced(session, states) if delay_unscale is None else delay_unscale,
            delay_overflow_check,
        )
        self._session = session
        self._states = states
        self._loss = loss

    backward = LossContext.backward

    def begin(self) -> torch.Tensor:
        """What the context yields."""
        for data_parallel in self._session.data_parallel:
            if data_parallel.noted is not None:
                data_parallel.share()
        for state in self._states:
            state.check_skips()
        return self.scale(self._loss)


class DTensorLoss(ScaledLoss):
    """The same for parameters some of which are DTensors: their shards have grads for the times in
    which the core looks at them."""

    def __enter__(self) -> torch.Tensor:
        with self._session.shards.mirrored():
            return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        with self._session.shards.mirrored():
            super().__exit__(*exception)


def check_loss(function: str, loss: Any) -> None:
    """Raises TypeError unless it is a tensor."""
    is_right = isinstance(loss, torch.Tensor)
    expect(is_right, function, "loss", "a floating-point tensor", loss)


def scale(session: Session, loss: torch.Tensor, loss_id: int) -> torch.Tensor:
    """`loss` times its current scale, float32, for a backward that finish() ends."""
    check_loss("scale", loss)
    session.check_trains("scale")
    session.check_order()
    return session.scaler(loss_id, "scale").scale(loss)


def finish(session: Session, states: Sequence[OptimizerState], loss_id: int) -> None:
    """Ends the backwards since the grads of `states` were zeroed; see amp.finish."""
    scaler = session.scaler(loss_id, "finish")
    for state in states:
        state.check_skips()
    with session.shards.mirrored():
        _C.finish([state.core for state in states], scaler, loss_id)


def _is_unsynced(session: Session, states: Sequence[OptimizerState]) -> bool:
    """Whether DistributedDataParallel or fully_shard leaves grads to this rank, and reduces them
    with those of a later backward: they wait for it, scaled."""
    if session.shards and leave_unsynced(session.models()):
        return True
    return any(
        each.is_unsynced and each.reaches([state.core for state in states])
        for each in session.data_parallel
    )


def clip_grad_norm(
    states: Sequence[OptimizerState],
    params: list[torch.Tensor],
    max_norm: float,
    norm_type: float,
) -> torch.Tensor:
    """See amp.clip_grad_norm_. params: what the optimizers step."""
    _check_bound("clip_grad_norm_", "max_norm", max_norm)
    expect(is_number(norm_type), "clip_grad_norm_", "norm_type", "a number", norm_type)
    if norm_type == 2.0:
        with _mirrored(states):
            return _clip_by_l2norm(states, params, max_norm)
    if _are_sharded(states):
        raise ValueError(
            "clip_grad_norm_: expected norm_type to be 2 with DTensors, where ranks sum squares, "
            f"got {norm_type}"
        )
    _unscale("clip_grad_norm_", states)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
    found = [each for state in states if (each := state.core.found_inf()) is not None]
    if not found or len(found) < len(states):
        return norm
    return norm.masked_fill(torch.stack(found).min() > 0, float("inf"))


def _are_sharded(states: Sequence[OptimizerState]) -> bool:
    return bool(states and states[0].session.shards)


def _mirrored(states: Sequence[OptimizerState]) -> contextlib.AbstractContextManager[None]:
    return states[0].session.shards.mirrored() if states else contextlib.nullcontext()


def _clip_by_l2norm(
    states: Sequence[OptimizerState], params: list[torch.Tensor], max_norm: float
) -> torch.Tensor:
    cores = list(dict.fromkeys(state.core for state in states))
    groups = mesh_groups_of(params) if _are_sharded(states) else []
    if not groups:
        return _C.clip_grad_norm(cores, max_norm)

    def all_reduce_sum(square: torch.Tensor) -> None:
        for group in groups:
            distributed.all_reduce(square, group=group)

    return _C.clip_grad_norm(cores, max_norm, counted_elsewhere(params, groups), all_reduce_sum)


def clip_grad_value(
    states: Sequence[OptimizerState], params: list[torch.Tensor], clip_value: float
) -> None:
    """See amp.clip_grad_value_. params: what the optimizers step."""
    _check_bound("clip_grad_value_", "clip_value", clip_value)
    with _mirrored(states):
        _unscale("clip_grad_value_", states)
        clipped = [shard for shard in map(shard_of, params) if shard.grad is not None]
        if clipped:  # torch's own raises where there is nothing to clip
            torch.nn.utils.clip_grad_value_(clipped, clip_value)


def _check_bound(function: str, argument: str, bound: Any) -> None:
    expect(is_number(bound), function, argument, "a number", bound)
    if not float(bound) >= 0:
        raise ValueError(f"{function}: expected {argument} to be at least 0, got {bound}")


def _unscale(function: str, states: Sequence[OptimizerState]) -> None:
    for state in states:
        state.core.check_unscaled(function)
    for state in states:
        state.core.unscale()

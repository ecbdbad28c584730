"""Clipping grads: of masters, without waiting for the device, and without a pass where the step is
fused."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchamp._load import _C
from torchamp.amp._optimizer_state import OptimizerState


def clip_grad_norm(
    states: Sequence[OptimizerState],
    params: list[torch.Tensor],
    max_norm: float,
    norm_type: float,
) -> torch.Tensor:
    """Scales all grads so that their norm together is at most `max_norm`; returns what it was, a
    float32 scalar on the device. `params`: what the optimizers step."""
    _check_unscaled("clip_grad_norm_", states)
    weights = list(dict.fromkeys(state.weights for state in states))
    if norm_type != 2.0:
        for each in weights:
            each.materialize()
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
    return _C.clip_grad_norm(weights, max_norm)


def clip_grad_value(
    states: Sequence[OptimizerState], params: list[torch.Tensor], clip_value: float
) -> None:
    """Clamps every element of the grads to [-clip_value, clip_value]."""
    _check_unscaled("clip_grad_value_", states)
    for state in states:
        state.weights.materialize()
    clipped = [param for param in params if param.grad is not None]
    if clipped:  # torch's own raises where there is nothing to clip
        torch.nn.utils.clip_grad_value_(clipped, clip_value)


def _check_unscaled(function: str, states: Sequence[OptimizerState]) -> None:
    for state in states:
        if state.core.grads_are_scaled:
            raise RuntimeError(
                f"{function}: expected unscaled grads, got those of a scale_loss that is still "
                "open or was given delay_unscale=True; clip after the last scale_loss of the step"
            )

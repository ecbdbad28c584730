"""Clipping, between the last scale_loss and the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from torchamp._arguments import expect, is_number
from torchamp._load import _C
from torchamp._shards import Shards, counted_elsewhere, mesh_groups_of
from torchamp.amp._casts.masters import listed_optimizers, params_of
from torchamp.amp._optimizer.optimizer import Optimizers, states_of
from torchamp.amp._run.session import OptimizerSession


def clip_grad_norm_(
    optimizers: Optimizers, max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scales the grads that `optimizers` step by so that their total norm is at most `max_norm`.
    Called between the last scale_loss and the step. The norm is computed in float32, also of 16-bit
    grads. With a fused optimizer and materialize_master_grads=False the clipping costs no pass.
    Grads that only skipped steps would use do not count. At O0 without a loss scale, and after
    initialize(enabled=False), it is `torch.nn.utils.clip_grad_norm_`.

    Args:
        optimizers: one or a list, of one initialize. The norm is that of all their grads together.
        max_norm: a number that is at least 0.
        norm_type: of the p-norm; inf for the maximum.

    Returns:
        The norm before clipping, a scalar on the device, without waiting. If all steps are to be
        skipped, it is not finite.

    Raises:
        TypeError: for a max_norm that is not a number.
        ValueError: for a max_norm that is negative or NaN, and for a norm_type other than 2 with
            DTensors.
        RuntimeError: where grads are still scaled, and for optimizers that initialize did not
            return.
    """
    chosen = listed_optimizers("clip_grad_norm_", optimizers)
    states = states_of("clip_grad_norm_", chosen)
    if states is None:
        return torch.nn.utils.clip_grad_norm_(params_of(chosen), max_norm, norm_type)
    _check_bound("clip_grad_norm_", "max_norm", max_norm)
    expect(is_number(norm_type), "clip_grad_norm_", "norm_type", "a number", norm_type)
    shards = _shards_of(states)
    if norm_type != 2.0 and shards:
        raise ValueError(
            "clip_grad_norm_: expected norm_type to be 2 with DTensors, where ranks sum squares, "
            f"got {norm_type}"
        )
    if _is_plain(states):
        params = list(dict.fromkeys(params_of(chosen)))
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
    with shards.mirrored():
        return _clip_by_norm(states, params_of(chosen), max_norm, norm_type)


def clip_grad_value_(optimizers: Optimizers, clip_value: float) -> None:
    """Clamps every element of the grads that `optimizers` step by to [-clip_value, clip_value].
    Called between the last scale_loss and the step. After initialize(enabled=False) it is
    `torch.nn.utils.clip_grad_value_`.

    Args:
        optimizers: one or a list, of one initialize.
        clip_value: a number that is at least 0.

    Raises:
        TypeError: for a clip_value that is not a number.
        ValueError: for a clip_value that is negative or NaN.
        RuntimeError: where grads are still scaled, and for optimizers that initialize did not
            return.
    """
    chosen = listed_optimizers("clip_grad_value_", optimizers)
    states = states_of("clip_grad_value_", chosen)
    if states is None:
        return torch.nn.utils.clip_grad_value_(params_of(chosen), clip_value)
    _check_bound("clip_grad_value_", "clip_value", clip_value)
    with _shards_of(states).mirrored():
        clipped = _unscaled("clip_grad_value_", states)
        if clipped:  # torch's own raises where there is nothing to clip
            torch.nn.utils.clip_grad_value_(clipped, clip_value)


def _check_bound(function: str, argument: str, bound: Any) -> None:
    expect(is_number(bound), function, argument, "a number", bound)
    if not float(bound) >= 0:
        raise ValueError(f"{function}: expected {argument} to be at least 0, got {bound}")


def _is_plain(states: Sequence[OptimizerSession]) -> bool:
    """Whether training is the program's own. torch's clip refuses DTensors of several meshes."""
    if not states or _shards_of(states):
        return False
    properties = states[0].session.settings.properties
    return properties.opt_level == "O0" and properties.loss_scale == 1.0


def _shards_of(states: Sequence[OptimizerSession]) -> Shards:
    return states[0].session.shards if states else Shards()


def _clip_by_norm(
    states: Sequence[OptimizerSession],
    params: list[torch.Tensor],
    max_norm: float,
    norm_type: float,
) -> torch.Tensor:
    cores = list(dict.fromkeys(state.core for state in states))
    groups = mesh_groups_of(params) if _shards_of(states) else []
    if not groups:
        return _C.clip_grad_norm(cores, max_norm, norm_type)

    def all_reduce_sum(square: torch.Tensor) -> None:
        for group in groups:
            distributed.all_reduce(square, group=group)

    counted = counted_elsewhere(params, groups)
    return _C.clip_grad_norm(cores, max_norm, norm_type, counted, all_reduce_sum)


def _unscaled(function: str, states: Sequence[OptimizerSession]) -> list[torch.Tensor]:
    """The parameters, of DTensors the shards, whose grads the next steps use, unscaled now."""
    for state in states:
        state.core.check_unscaled(function)
    for state in states:
        state.core.unscale()
    params = [param for state in states for param in state.core.params_with_grads()]
    return list(dict.fromkeys(params))

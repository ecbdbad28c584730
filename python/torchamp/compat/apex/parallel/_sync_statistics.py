"""Batch norm over all ranks in plain ops, for devices without a kernel of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """The sum of the ranks' tensors, on every rank."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = values.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Sum.apply(grad, ctx.group), None


def normalize_over_ranks(norm: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """The input, [batch, channels, *], normalized by the statistics of all ranks' batches, with
    the norm's weight and bias; updates its running statistics. Computed in float32."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = [d for d in range(x.dim()) if d != 1]
    local = x.numel() // x.shape[1]
    sums = torch.cat([x.sum(dims), x.new_tensor([local])])
    sums = _Sum.apply(sums, norm.process_group)
    count = sums[-1].item()
    if count <= 1:
        raise ValueError("SyncBatchNorm: expected more than one value per channel, got one")
    mean = sums[:-1] / count
    centred = x - _as_channels(mean, x)
    var = _Sum.apply(centred.square().sum(dims), norm.process_group) / count
    _update_running(norm, mean.detach(), var.detach(), count)
    result = centred * _as_channels((var + norm.eps).rsqrt(), x)
    if norm.affine:
        result = result * _as_channels(norm.weight, x) + _as_channels(norm.bias, x)
    return result.to(input.dtype)


def _as_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.reshape([1, -1] + [1] * (like.dim() - 2))


@torch.no_grad()
def _update_running(norm: _BatchNorm, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
    if norm.running_mean is None:
        return
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1.0 / norm.num_batches_tracked.item()
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_((var * (count / (count - 1))).to(norm.running_var.dtype), momentum)

"""apex's batch norm over all ranks, on torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["SyncBatchNorm", "convert_syncbn_model", "create_syncbn_process_group"]


class SyncBatchNorm(_BatchNorm):
    """Batch norm whose statistics are those of all ranks together.

    num_features, eps, momentum, affine, track_running_stats, process_group: as
    torch.nn.SyncBatchNorm's.

    input: [batch, channels, *], output: of its sizes and dtype. Runs on the CPU too, where torch's
    does not, and is therefore no subclass of it. Raises ValueError for channel_last and fuse_relu.
    """

    #: torch's, which take any batch norm.
    _check_input_dim: Any = nn.SyncBatchNorm._check_input_dim
    _check_non_zero_input_channels: Any = nn.SyncBatchNorm._check_non_zero_input_channels
    _forward_over_ranks: Any = nn.SyncBatchNorm.forward

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        if channel_last or fuse_relu:
            raise ValueError(
                "SyncBatchNorm: expected channel_last and fuse_relu to be False, got "
                f"{channel_last} and {fuse_relu}; use torch.channels_last and torch.nn.ReLU"
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.device.type == "cpu" and self._uses_ranks():
            self._check_input_dim(input)
            return _normalize_over_ranks(self, input)
        return self._forward_over_ranks(input)

    def _uses_ranks(self) -> bool:
        by_batch = self.training or self.running_mean is None
        ranked = distributed.is_available() and distributed.is_initialized()
        return by_batch and ranked and distributed.get_world_size(self.process_group) > 1


def convert_syncbn_model(
    module: nn.Module, process_group: Any = None, channel_last: bool = False
) -> nn.Module:
    """Replaces every batch norm in `module` by a SyncBatchNorm; returns it, or its replacement.
    Parameters, buffers and modes are kept; instance norms and norms over ranks are left alone."""
    if isinstance(module, (nn.SyncBatchNorm, SyncBatchNorm)):
        return module
    if not isinstance(module, _BatchNorm):
        for name, child in module.named_children():
            setattr(module, name, convert_syncbn_model(child, process_group, channel_last))
        return module
    result = SyncBatchNorm(
        module.num_features,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
        process_group,
        channel_last,
    )
    result._parameters.update(module._parameters)
    result._buffers.update(module._buffers)
    return result.train(module.training)


def create_syncbn_process_group(group_size: int) -> Any:
    """This rank's group of `group_size` neighbours, which all ranks ask for; None for 0. Raises
    AssertionError if that does not divide the number of ranks."""
    if group_size == 0:
        return None
    world_size = distributed.get_world_size()
    if world_size % group_size:
        raise AssertionError(
            f"create_syncbn_process_group: expected group_size to divide the number of ranks, "
            f"{world_size}, got {group_size}"
        )
    return distributed.new_subgroups(group_size)[0]


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


def _normalize_over_ranks(norm: _BatchNorm, input: torch.Tensor) -> torch.Tensor:
    """The input, [batch, channels, *], normalized by the statistics of all ranks' batches, with
    the norm's weight and bias; updates its running statistics. Computed in float32."""
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = [d for d in range(x.dim()) if d != 1]
    local = x.numel() // x.shape[1]
    sums = _Sum.apply(torch.cat([x.sum(dims), x.new_tensor([local])]), norm.process_group)
    count = sums[-1].item()
    if count <= 1:
        raise ValueError("SyncBatchNorm: expected more than one value per channel, got one")
    mean = sums[:-1] / count
    by_channel = [1, -1] + [1] * (x.dim() - 2)
    centred = x - mean.reshape(by_channel)
    var = _Sum.apply(centred.square().sum(dims), norm.process_group) / count
    if norm.running_mean is not None:
        _update_running(norm, mean.detach(), var.detach(), count)
    result = centred * (var + norm.eps).rsqrt().reshape(by_channel)
    if norm.affine:
        result = result * norm.weight.reshape(by_channel) + norm.bias.reshape(by_channel)
    return result.to(input.dtype)


@torch.no_grad()
def _update_running(norm: _BatchNorm, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
    norm.num_batches_tracked.add_(1)
    mean_of_all = 1.0 / norm.num_batches_tracked.item()
    momentum = mean_of_all if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_((var * (count / (count - 1))).to(norm.running_var.dtype), momentum)

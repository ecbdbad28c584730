"""Stage 2: cast. The parameters and buffers of a model, in place."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchamp._shards import is_dtensor
from torchamp.amp._kept import NONE, Kept


def params_to_cast(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Kept = NONE
) -> Iterator[torch.Tensor]:
    """The floating parameters that cast_model would give another dtype; a shared one may come more
    than once."""
    for _, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        for param in module.parameters(recurse=False):
            if _changes(param, dtype):
                yield param


def buffers_to_cast(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Kept
) -> Iterator[str]:
    """The names of the floating buffers that cast_model would give another dtype."""
    for path, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        for name, buffer in module.named_buffers(path, recurse=False):
            if buffer not in kept and _changes(buffer, dtype):
                yield name


def cast_model(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool, kept: Kept = NONE
) -> None:
    """Gives floating parameters, their grads and floating buffers `dtype`, in place: tensors keep
    their identity. `keep_batchnorm_fp32` leaves batch norms alone. Recurrent modules get their
    weights flattened again."""
    for _, module in _cast_modules(model, keep_batchnorm_fp32, kept):
        cast_own_tensors(module, dtype, kept)
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()


def _cast_modules(
    model: torch.nn.Module, keep_batchnorm_fp32: bool, kept: Kept
) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        is_kept_norm = keep_batchnorm_fp32 and isinstance(module, _BatchNorm)
        if module not in kept and not is_kept_norm:
            yield name, module


def _changes(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """DTensors stay in float32: fully_shard casts what it gathers."""
    return tensor.is_floating_point() and tensor.dtype != dtype and not is_dtensor(tensor)


def cast_own_tensors(module: torch.nn.Module, dtype: torch.dtype, kept: Kept = NONE) -> None:
    """Gives the module's own floating parameters, their grads and floating buffers `dtype`."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor in kept or not _changes(tensor, dtype):
            continue
        grad, tensor.grad = tensor.grad, None
        tensor.data = tensor.data.to(dtype)
        if grad is not None:
            tensor.grad = grad.to(dtype)

"""Stage 2: cast. A model's parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.modules.batchnorm import _BatchNorm


def params_to_cast(
    model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool
) -> Iterator[torch.Tensor]:
    """The floating parameters that cast_model would give another dtype; a shared one may come more
    than once."""
    for module in _cast_modules(model, keep_batchnorm_fp32):
        for param in module.parameters(recurse=False):
            if _changes(param, dtype):
                yield param


def cast_model(model: torch.nn.Module, dtype: torch.dtype, keep_batchnorm_fp32: bool) -> None:
    """Gives floating parameters, their grads and floating buffers `dtype`, in place: tensors keep
    their identity. `keep_batchnorm_fp32` leaves affine batch norms alone. Recurrent modules get
    their weights flattened again."""
    for module in _cast_modules(model, keep_batchnorm_fp32):
        for param in module.parameters(recurse=False):
            _cast_param(param, dtype)
        for buffer in module.buffers(recurse=False):
            if _changes(buffer, dtype):
                buffer.data = buffer.data.to(dtype)
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()


def _cast_modules(model: torch.nn.Module, keep_batchnorm_fp32: bool) -> Iterator[torch.nn.Module]:
    for module in model.modules():
        kept = keep_batchnorm_fp32 and isinstance(module, _BatchNorm) and module.affine
        if not kept:
            yield module


def _changes(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype != dtype


def _cast_param(param: torch.nn.Parameter, dtype: torch.dtype) -> None:
    if not _changes(param, dtype):
        return
    grad, param.grad = param.grad, None
    param.data = param.data.to(dtype)
    if grad is not None:
        param.grad = grad.to(dtype)

"""apex's autograd functions for layer norm and RMS norm, on torch's kernels.

They do not cast under torch.autocast; apex's functions, which do, are in _functions. A backward can
be differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torchamp.compat.apex._cast import as_dtype
from torchamp.compat.apex.normalization._functions import in_one_dtype, rms_norm


class FusedLayerNormFunction(torch.autograd.Function):
    """fused_layer_norm without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _layer_norm(ctx, input, None, None, normalized_shape, eps, input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _layer_norm_grads(ctx, grad_output)[0], None, None, None


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """fused_layer_norm_affine without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _layer_norm(ctx, input, weight, bias, normalized_shape, eps, input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_layer_norm_grads(ctx, grad_output), None, None, None


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """FusedLayerNormAffineFunction whose result has the weight's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _layer_norm(ctx, input, weight, bias, normalized_shape, eps, weight.dtype)


class FusedRMSNormFunction(torch.autograd.Function):
    """fused_rms_norm without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _rms_norm(ctx, input, None, normalized_shape, eps, input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _rms_norm_grads(ctx, grad_output)[0], None, None, None


class FusedRMSNormAffineFunction(torch.autograd.Function):
    """fused_rms_norm_affine without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _rms_norm(ctx, input, weight, normalized_shape, eps, input.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *_rms_norm_grads(ctx, grad_output), None, None, None


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """FusedRMSNormAffineFunction whose result has the weight's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _rms_norm(ctx, input, weight, normalized_shape, eps, weight.dtype)


def _layer_norm(
    ctx: Any,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    ctx.shape = shape
    x, factor, shift = in_one_dtype(input, weight, bias)
    with torch.autocast(input.device.type, enabled=False):
        result, mean, rstd = torch.native_layer_norm(x, shape, factor, shift, eps)
    ctx.save_for_backward(input, weight, bias, mean, rstd)
    return as_dtype(result, result_dtype)


def _layer_norm_grads(ctx: Any, grad: torch.Tensor) -> list[torch.Tensor | None]:
    """The grads of input, weight and bias, each in its tensor's dtype."""
    *tensors, mean, rstd = ctx.saved_tensors
    x, factor, shift = in_one_dtype(*tensors)
    wanted = [tensor is not None for tensor in tensors]
    grads = torch.ops.aten.native_layer_norm_backward(
        grad.to(x.dtype), x, ctx.shape, mean, rstd, factor, shift, wanted
    )
    return [None if t is None else g.to(t.dtype) for g, t in zip(grads, tensors)]


def _rms_norm(
    ctx: Any,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    shape: Sequence[int],
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    ctx.compute = functools.partial(rms_norm, shape=shape, eps=eps, result_dtype=result_dtype)
    ctx.save_for_backward(input, weight)
    return ctx.compute(input, weight)


def _rms_norm_grads(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The grads of input and, if there is one, of weight. torch has no backward of RMS norm to call
    on every device, so the forward is computed again."""
    input, weight = ctx.saved_tensors
    if weight is None:
        return torch.func.vjp(lambda x: ctx.compute(x, None), input)[1](grad)
    return torch.func.vjp(ctx.compute, input, weight)[1](grad)

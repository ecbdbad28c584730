"""apex's functions for layer norm and RMS norm, on torch's ops.

Statistics are float32 (float64 for float64) whatever the input's dtype. Results have the input's
dtype, and in the mixed forms the weight's, at O1 too. Under the program's own torch.autocast all
arguments are first cast to its dtype. Each function takes `memory_efficient`, which changes
nothing: torch keeps the same tensors for the backward either way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from torchamp._load import _C
from torchamp.compat.apex._cast import as_dtype

Shape = Sequence[int]


def _cast_by_autocast(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`fn` with its tensors cast to the dtype of a torch.autocast that is not O1's."""

    @functools.wraps(fn)
    def cast(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device_type = input.device.type
        if torch.is_autocast_enabled(device_type) and _C.casting_to(device_type) is None:
            dtype = torch.get_autocast_dtype(device_type)
            input, args = _cast(input, dtype), tuple(_cast(arg, dtype) for arg in args)
            kwargs = {name: _cast(arg, dtype) for name, arg in kwargs.items()}
        return fn(input, *args, **kwargs)

    return cast


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_cast = isinstance(value, torch.Tensor) and value.dtype != torch.float64
    return value.to(dtype) if is_cast and value.is_floating_point() else value


@_cast_by_autocast
def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """Layer norm over the last dimensions, of sizes `normalized_shape`."""
    return _layer_norm(input, None, None, normalized_shape, eps, input.dtype)


@_cast_by_autocast
def fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Layer norm, times `weight` plus `bias`, both of sizes `normalized_shape`."""
    return _layer_norm(input, weight, bias, normalized_shape, eps, input.dtype)


@_cast_by_autocast
def mixed_dtype_fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """fused_layer_norm_affine whose result has the weight's dtype."""
    return _layer_norm(input, weight, bias, normalized_shape, eps, weight.dtype)


@_cast_by_autocast
def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMS norm over the last dimensions, of sizes `normalized_shape`."""
    return rms_norm(input, None, normalized_shape, eps, input.dtype)


@_cast_by_autocast
def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMS norm, times `weight`, of sizes `normalized_shape`."""
    return rms_norm(input, weight, normalized_shape, eps, input.dtype)


@_cast_by_autocast
def mixed_dtype_fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """fused_rms_norm_affine whose result has the weight's dtype."""
    return rms_norm(input, weight, normalized_shape, eps, weight.dtype)


def manual_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """fused_rms_norm_affine, or fused_rms_norm without a weight."""
    return rms_norm(input, weight, normalized_shape, eps, input.dtype)


def _layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Shape,
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    x, factor, shift = in_one_dtype(input, weight, bias)
    with torch.autocast(input.device.type, enabled=False):
        return as_dtype(F.layer_norm(x, shape, factor, shift, eps), result_dtype)


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    shape: Shape,
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    """RMS norm, times `weight` if there is one."""
    x, factor = in_one_dtype(input, weight)
    with torch.autocast(input.device.type, enabled=False):
        return as_dtype(F.rms_norm(x, shape, factor, eps), result_dtype)


def in_one_dtype(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """As given if all are of one dtype, whose statistics torch computes in float32; else in the
    widest of theirs, at least float32."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) == 1:
        return list(tensors)
    wide = torch.float64 if torch.float64 in dtypes else torch.float32
    return [None if tensor is None else tensor.to(wide) for tensor in tensors]

"""apex's functions for layer norm and RMS norm, on torch's ops.

Statistics are float32 (float64 for float64) whatever the input's dtype. Results have the input's
dtype, under O1 and other autocasts too, and in the mixed forms the weight's. Each function takes
`memory_efficient`, which changes nothing: torch keeps the same tensors for the backward either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

Shape = Sequence[int]


def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """Layer norm over the last dimensions, of sizes `normalized_shape`."""
    return _layer_norm(input, None, None, normalized_shape, eps, input.dtype)


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


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMS norm over the last dimensions, of sizes `normalized_shape`."""
    return _rms_norm(input, None, normalized_shape, eps, input.dtype)


def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMS norm, times `weight`, of sizes `normalized_shape`."""
    return _rms_norm(input, weight, normalized_shape, eps, input.dtype)


def mixed_dtype_fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """fused_rms_norm_affine whose result has the weight's dtype."""
    return _rms_norm(input, weight, normalized_shape, eps, weight.dtype)


def manual_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """fused_rms_norm_affine, or fused_rms_norm without a weight."""
    return _rms_norm(input, weight, normalized_shape, eps, input.dtype)


def _layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: Shape,
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    x, factor, shift = _in_one_dtype(input, weight, bias)
    with torch.autocast(input.device.type, enabled=False):
        return F.layer_norm(x, shape, factor, shift, eps).to(result_dtype)


def _rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    shape: Shape,
    eps: float,
    result_dtype: torch.dtype,
) -> torch.Tensor:
    x, factor = _in_one_dtype(input, weight)
    with torch.autocast(input.device.type, enabled=False):
        return F.rms_norm(x, shape, factor, eps).to(result_dtype)


def _in_one_dtype(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """As given if all are of one dtype, whose statistics torch computes in float32; else in the
    widest of theirs, at least float32."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    if len(dtypes) == 1:
        return list(tensors)
    wide = torch.float64 if torch.float64 in dtypes else torch.float32
    return [None if tensor is None else tensor.to(wide) for tensor in tensors]

"""apex's layer norm and RMS norm, on torch's.

Statistics are float32 (float64 for float64) whatever the input's dtype, and results have the
input's, at O1 too. Under the program's own torch.autocast all arguments are first cast to its
dtype. `memory_efficient` changes nothing: torch keeps the same tensors for the backward either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torchamp._load import _C

__all__ = [
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormFunction",
    "FusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
]

Shape = Sequence[int]


def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """Layer norm over the last dimensions, of sizes `normalized_shape`."""
    return _norm(F.layer_norm, normalized_shape, eps, *_cast_by_autocast(input))


def fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Layer norm, times `weight` plus `bias`, both of sizes `normalized_shape`."""
    return _norm(F.layer_norm, normalized_shape, eps, *_cast_by_autocast(input, weight, bias))


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMS norm over the last dimensions, of sizes `normalized_shape`."""
    return _norm(F.rms_norm, normalized_shape, eps, *_cast_by_autocast(input))


def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMS norm, times `weight`, of sizes `normalized_shape`."""
    return _norm(F.rms_norm, normalized_shape, eps, *_cast_by_autocast(input, weight))


class _Applied:
    """What programs apply as an autograd function, and whose `forward` they inspect."""

    forward: Callable[..., torch.Tensor]

    @classmethod
    def apply(cls, *args: Any) -> torch.Tensor:
        return cls.forward(None, *args)


class FusedLayerNormFunction(_Applied):
    """fused_layer_norm without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _norm(F.layer_norm, normalized_shape, eps, input)


class FusedLayerNormAffineFunction(_Applied):
    """fused_layer_norm_affine without the casts of torch.autocast."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        return _norm(F.layer_norm, normalized_shape, eps, input, weight, bias)


def _cast_by_autocast(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    """The tensors in the dtype of a torch.autocast that is not O1's."""
    device_type = tensors[0].device.type
    if not torch.is_autocast_enabled(device_type) or _C.casting_to(device_type) is not None:
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return [tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors]


def _norm(norm: Callable, shape: Shape, eps: float, *tensors: torch.Tensor) -> torch.Tensor:
    """`norm` of the input, times weight and plus bias if they follow it."""
    result_dtype, dtypes = tensors[0].dtype, {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:  # torch's norms take one
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        tensors = tuple(tensor.to(wide) for tensor in tensors)
    input, *affine = tensors
    with torch.autocast(input.device.type, enabled=False):
        return norm(input, shape, *affine, eps=eps).to(result_dtype)


class _Norm(nn.Module):
    identity: dict[str, float]
    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(normalized_shape, Iterable):
            normalized_shape = [normalized_shape]
        self.normalized_shape: torch.Size = torch.Size(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name, value in self.identity.items():
            full = torch.full(self.normalized_shape, value)
            self.register_parameter(name, nn.Parameter(full) if elementwise_affine else None)

    def reset_parameters(self) -> None:
        """Back to the identity."""
        for name, param in self.named_parameters():
            nn.init.constant_(param, self.identity[name])

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class FusedRMSNorm(_Norm):
    """RMS norm over the last dimensions, of sizes `normalized_shape` (an int for one), times
    `weight` if elementwise_affine.

    input, output: [*, *normalized_shape], any floating dtype. memory_efficient: accepted, changes
    nothing. Not torch.nn.RMSNorm's kind, nor FusedLayerNorm torch.nn.LayerNorm's, so that code
    which looks for these, to initialise them say, treats it as under apex.
    """

    identity: dict[str, float] = {"weight": 1.0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.elementwise_affine:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class FusedLayerNorm(_Norm):
    """Layer norm over the last dimensions, of sizes `normalized_shape` (an int for one), times
    `weight` plus `bias` if elementwise_affine.

    Arguments, input and output as FusedRMSNorm's.
    """

    identity: dict[str, float] = {"weight": 1.0, "bias": 0.0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape, eps = self.normalized_shape, self.eps
        if not self.elementwise_affine:
            return fused_layer_norm(input, shape, eps)
        return fused_layer_norm_affine(input, self.weight, self.bias, shape, eps)

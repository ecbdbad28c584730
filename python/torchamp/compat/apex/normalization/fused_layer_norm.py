"""apex's norms as modules: not torch.nn.LayerNorm's kind, so that code which looks for that, to
initialise it say, treats them as under apex."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from torchamp.compat.apex.normalization._autograd import (
    FusedLayerNormAffineFunction,
    FusedLayerNormAffineMixedDtypesFunction,
    FusedLayerNormFunction,
    FusedRMSNormAffineFunction,
    FusedRMSNormAffineMixedDtypesFunction,
    FusedRMSNormFunction,
)
from torchamp.compat.apex.normalization._functions import (
    fused_layer_norm,
    fused_layer_norm_affine,
    fused_rms_norm,
    fused_rms_norm_affine,
    manual_rms_norm,
    mixed_dtype_fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine,
)

__all__ = [
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormAffineMixedDtypesFunction",
    "FusedLayerNormFunction",
    "FusedRMSNorm",
    "FusedRMSNormAffineFunction",
    "FusedRMSNormAffineMixedDtypesFunction",
    "FusedRMSNormFunction",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "manual_rms_norm",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
]


class _Norm(nn.Module):
    param_names: tuple[str, ...] = ("weight",)
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
        for name in self.param_names:
            param = nn.Parameter(self._identity(name)) if elementwise_affine else None
            self.register_parameter(name, param)

    def _identity(self, name: str) -> torch.Tensor:
        return torch.full(self.normalized_shape, 1.0 if name == "weight" else 0.0)

    def reset_parameters(self) -> None:
        """Back to the identity."""
        with torch.no_grad():
            for name, param in self.named_parameters():
                param.copy_(self._identity(name))

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class FusedRMSNorm(_Norm):
    """RMS norm over the last dimensions, of sizes `normalized_shape` (an int for one), times
    `weight` if elementwise_affine.

    input, output: [*, *normalized_shape], any floating dtype. memory_efficient: accepted, changes
    nothing.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.elementwise_affine:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class FusedLayerNorm(_Norm):
    """Layer norm over the last dimensions, of sizes `normalized_shape` (an int for one), times
    `weight` plus `bias` if elementwise_affine.

    Arguments, input and output as FusedRMSNorm's.
    """

    param_names: tuple[str, ...] = ("weight", "bias")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape, eps = self.normalized_shape, self.eps
        if not self.elementwise_affine:
            return fused_layer_norm(input, shape, eps)
        return fused_layer_norm_affine(input, self.weight, self.bias, shape, eps)


class _AlwaysAffine(_Norm):
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        elementwise_affine: bool = True,
    ) -> None:
        name = type(self).__name__
        if not elementwise_affine:
            raise RuntimeError(
                f"{name}: expected elementwise_affine to be True, got False; "
                f"{name.replace('Mixed', '')} takes it"
            )
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_AlwaysAffine, FusedLayerNorm):
    """FusedLayerNorm, always with weight and bias, whose output has their dtype.

    Raises RuntimeError for elementwise_affine=False.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return mixed_dtype_fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )


class MixedFusedRMSNorm(_AlwaysAffine, FusedRMSNorm):
    """FusedRMSNorm, always with a weight, whose output has its dtype.

    Raises RuntimeError for elementwise_affine=False.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return mixed_dtype_fused_rms_norm_affine(
            input, self.weight, self.normalized_shape, self.eps
        )

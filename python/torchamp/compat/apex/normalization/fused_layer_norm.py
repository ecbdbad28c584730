"""apex's layer norm and RMS norm, on torch's.

Statistics are float32 (float64 for float64) whatever the input's dtype, and results have the
input's, at O1 too. Under the program's own torch.autocast all arguments are first cast to its
dtype. `memory_efficient` changes nothing: torch keeps the same tensors for the backward either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from torchamp._load import _C
from torchamp.compat import _gone

__all__ = [
    "FusedLayerNorm",
    "FusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
]

__getattr__: _gone.Getattr = _gone.attributes_of("apex.normalization.fused_layer_norm")

Shape = Sequence[int]


def fused_layer_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """Layer norm over the last dimensions, of sizes `normalized_shape`."""
    return _norm(F.layer_norm, normalized_shape, eps, input)


def fused_layer_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Layer norm, times `weight` plus `bias`, both of sizes `normalized_shape`."""
    return _norm(F.layer_norm, normalized_shape, eps, input, weight, bias)


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> torch.Tensor:
    """RMS norm over the last dimensions, of sizes `normalized_shape`."""
    return _norm(F.rms_norm, normalized_shape, eps, input)


def fused_rms_norm_affine(
    input: torch.Tensor,
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """RMS norm, times `weight`, of sizes `normalized_shape`."""
    return _norm(F.rms_norm, normalized_shape, eps, input, weight)


def _norm(norm: Callable, shape: Shape, eps: float, *tensors: torch.Tensor) -> torch.Tensor:
    """`norm` of the input, times weight and plus bias if they follow it, in the dtype of a
    torch.autocast that is not O1's."""
    device_type = tensors[0].device.type
    if torch.is_autocast_enabled(device_type) and _C.casting_to(device_type) is None:
        dtype = torch.get_autocast_dtype(device_type)
        tensors = tuple(each if each.dtype == torch.float64 else each.to(dtype) for each in tensors)
    result_dtype, dtypes = tensors[0].dtype, {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1:  # torch's norms take one
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        tensors = tuple(tensor.to(wide) for tensor in tensors)
    input, *affine = tensors
    with torch.autocast(device_type, enabled=False):
        return norm(input, shape, *affine, eps=eps).to(result_dtype)


class _Norm(nn.Module):
    """Over the last dimensions, of sizes `normalized_shape` (an int for one), in the input's dtype.
    With elementwise_affine its parameters follow, of those sizes. memory_efficient: accepted.

    Neither torch.nn.LayerNorm nor torch.nn.RMSNorm, so that code which looks for these, to
    initialise them say, treats it as under apex.
    """

    function: Callable
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        affine = [getattr(self, name) for name in self.identity if self.elementwise_affine]
        return _norm(self.function, self.normalized_shape, self.eps, input, *affine)

    def reset_parameters(self) -> None:
        """Back to the identity."""
        for name, param in self.named_parameters():
            nn.init.constant_(param, self.identity[name])

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class FusedRMSNorm(_Norm):
    """RMS norm, times `weight`."""

    function: Callable = staticmethod(F.rms_norm)
    identity: dict[str, float] = {"weight": 1.0}


class FusedLayerNorm(_Norm):
    """Layer norm, times `weight` plus `bias`."""

    function: Callable = staticmethod(F.layer_norm)
    identity: dict[str, float] = {"weight": 1.0, "bias": 0.0}

"""apex's dense layers, on torch's linear layers, whose GEMMs add the bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "FusedDense",
    "FusedDenseGeluDense",
    "dense_no_bias_function",
    "fused_dense_function",
    "fused_dense_gelu_dense_function",
]


def fused_dense_function(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """input: [*, features in], weight: [features out, features in], bias: [features out]."""
    return F.linear(input, weight, bias)


def dense_no_bias_function(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """fused_dense_function without a bias."""
    return F.linear(input, weight)


def fused_dense_gelu_dense_function(
    input: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
) -> torch.Tensor:
    """Two dense layers with GELU, in its tanh form, between them."""
    hidden = F.gelu(F.linear(input, weight1, bias1), approximate="tanh")
    return F.linear(hidden, weight2, bias2)


class FusedDense(nn.Linear):
    """A linear layer."""


class FusedDenseGeluDense(nn.Module):
    """Two linear layers with GELU, in its tanh form, between them. Parameters are called weight1,
    bias1, weight2 and bias2. Raises AssertionError for bias=False, which apex lacks too."""

    def __init__(
        self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        if not bias:
            raise AssertionError("FusedDenseGeluDense: expected bias to be True, got False")
        self.in_features = in_features
        self.intermediate_features = intermediate_features
        self.out_features = out_features
        first = nn.Linear(in_features, intermediate_features)
        second = nn.Linear(intermediate_features, out_features)
        self.weight1: torch.Tensor = first.weight
        self.bias1: nn.Parameter = first.bias
        self.weight2: torch.Tensor = second.weight
        self.bias2: nn.Parameter = second.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return fused_dense_gelu_dense_function(
            input, self.weight1, self.bias1, self.weight2, self.bias2
        )

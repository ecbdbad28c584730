"""apex's multi-layer perceptron, on torch's linear layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MLP"]

_ACTIVATIONS = {"none": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}


class MLP(nn.Module):
    """Linear layers, each followed by the activation, the last one too.

    mlp_sizes: features in, between and out. activation: "none", "relu" or "sigmoid". Parameters are
    called weight_0, bias_0, weight_1, …

    Raises TypeError for another activation.
    """

    def __init__(
        self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(
                f"MLP: expected activation to be none, relu or sigmoid, got {activation!r}"
            )
        self.activation: nn.Module = _ACTIVATIONS[activation]()
        self.num_layers: int = len(mlp_sizes) - 1
        self.bias: bool = bias
        for i, (inputs, outputs) in enumerate(zip(mlp_sizes, mlp_sizes[1:])):
            weight = nn.init.xavier_normal_(torch.empty(outputs, inputs))
            self.register_parameter(f"weight_{i}", nn.Parameter(weight))
            if bias:
                shift = torch.randn(outputs) * outputs**-0.5
                self.register_parameter(f"bias_{i}", nn.Parameter(shift))

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights of all layers, each [features out, features in]."""
        return [getattr(self, f"weight_{i}") for i in range(self.num_layers)]

    @property
    def biases(self) -> list[nn.Parameter]:
        """The biases of all layers; none without bias."""
        return [getattr(self, f"bias_{i}") for i in range(self.num_layers) if self.bias]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for weight, bias in itertools.zip_longest(self.weights, self.biases):
            input = self.activation(F.linear(input, weight, bias))
        return input

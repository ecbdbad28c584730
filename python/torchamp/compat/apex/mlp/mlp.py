"""apex's multi-layer perceptron, on torch's linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MLP", "mlp_function"]

_ACTIVATIONS = {"none": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid}
_NAMES = list(_ACTIVATIONS)


def mlp_function(bias: bool, activation: int, *args: torch.Tensor) -> torch.Tensor:
    """args: the input, [batch, features], all weights, and all biases if `bias`. activation: 0
    none, 1 ReLU, 2 sigmoid, after every layer."""
    result, *tensors = args
    layers = len(tensors) // 2 if bias else len(tensors)
    biases = tensors[layers:] if bias else [None] * layers
    for weight, shift in zip(tensors[:layers], biases):
        result = _ACTIVATIONS[_NAMES[activation]](F.linear(result, weight, shift))
    return result


class MLP(nn.Module):
    """Linear layers, each followed by the activation, the last one too.

    mlp_sizes: features in, between and out. bias: whether layers add one. activation: "none",
    "relu" or "sigmoid". Parameters are called weight_0, bias_0, weight_1, …

    Raises TypeError for another activation.
    """

    def __init__(
        self, mlp_sizes: Sequence[int], bias: bool = True, activation: str = "relu"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise TypeError(
                f"MLP: expected activation to be one of {', '.join(_NAMES)}, got {activation!r}"
            )
        self.mlp_sizes: list[int] = list(mlp_sizes)
        self.num_layers: int = len(self.mlp_sizes) - 1
        self.bias: bool = bool(bias)
        self.activation: int = _NAMES.index(activation)
        for i, (inputs, outputs) in enumerate(zip(self.mlp_sizes, self.mlp_sizes[1:])):
            self.register_parameter(f"weight_{i}", nn.Parameter(torch.empty(outputs, inputs)))
            if bias:
                self.register_parameter(f"bias_{i}", nn.Parameter(torch.empty(outputs)))
        self.reset_parameters()

    @property
    def weights(self) -> list[nn.Parameter]:
        """The weights of all layers, each [features out, features in]."""
        return [getattr(self, f"weight_{i}") for i in range(self.num_layers)]

    @property
    def biases(self) -> list[nn.Parameter]:
        """The biases of all layers; none without bias."""
        return [getattr(self, f"bias_{i}") for i in range(self.num_layers) if self.bias]

    def reset_parameters(self) -> None:
        """Draws new weights and biases."""
        for weight in self.weights:
            nn.init.normal_(weight, 0.0, math.sqrt(2.0 / sum(weight.shape)))
        for bias in self.biases:
            nn.init.normal_(bias, 0.0, math.sqrt(1.0 / len(bias)))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return mlp_function(self.bias, self.activation, input, *self.weights, *self.biases)

    def extra_repr(self) -> str:
        return f"MLP sizes: {self.mlp_sizes}, Bias={self.bias}, activation={self.activation}"

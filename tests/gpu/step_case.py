"""Calls of fused_step on lists of tensors: the same numbers on every device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchamp import ops
from torchamp.ops import StepAlgorithm

GRAD_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """The arguments of fused_step; norms: the rows of norms that it reads."""

    which: StepAlgorithm
    states: int
    hyper: tuple[float, ...]
    norms: tuple[str, ...] = ()

    @property
    def lists(self) -> int:
        """Dtypes at one position: the grad, the parameter, its states, the model's parameter."""
        return 3 + self.states


_ADAM = (1e-2, 0.9, 0.99, 1e-6, 0.01, 1, 0, 1)
_LAMB = (*_ADAM, 1, 0, 1.0)
_NOVO_GRAD = (1e-2, 0.9, 0.99, 1e-6, 0.01, 0, 1, 0, 1, 0)
_BOTH_NORMS = ("param_norms", "update_norms")

ALGORITHMS = {
    "adam": Algorithm(StepAlgorithm.ADAM, 2, _ADAM),
    "sgd": Algorithm(StepAlgorithm.SGD, 0, (1e-2, 0, 0, 0.01)),
    "momentum": Algorithm(StepAlgorithm.MOMENTUM, 1, (1e-2, 0.9, 0, 0.01, 1)),
    "novo_grad": Algorithm(
        StepAlgorithm.NOVOGRAD, 1, _NOVO_GRAD, ("update_norms", "norm_averages")
    ),
    "lamb": Algorithm(StepAlgorithm.LAMB, 3, _LAMB, ("update_norms",)),
    "lamb_apply": Algorithm(StepAlgorithm.LAMB_APPLY, 0, _LAMB, _BOTH_NORMS),
}

#: (number of the list, position, tensor) -> a copy of the tensor in other memory.
Arrange = Callable[[int, int, torch.Tensor], torch.Tensor]


class StepCase:
    """A repeatable call: each continues from the result of the last.

    Two groups of hyperparameters alternate, and so do the dtypes of grads and of the model's
    parameters. The norms are given, because computed norms differ between devices.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        sizes: Sequence[int],
        device: torch.device,
        arrange: Arrange = lambda number, i, tensor: tensor,
        grad_dtypes: Sequence[torch.dtype] = GRAD_DTYPES,
    ) -> None:
        self._algorithm = algorithm
        self._sizes = sizes
        self._device = device
        self._arrange = arrange
        self._generator = torch.Generator().manual_seed(1)
        states = [self._list(2 + s, self._zeros) for s in range(algorithm.states)]
        self._given: dict[str, Any] = {
            "grads": self._list(0, lambda i: self._normal(i, grad_dtypes)),
            "params": self._list(1, self._normal),
            "states": [state for each in states for state in each],
            "model_params": self._list(2 + algorithm.states, self._model_param),
            "steps": torch.zeros(len(sizes), device=device),
            "hyper": self._hyper(),
            "groups": torch.arange(len(sizes), dtype=torch.int32) % 2,
            **{name: self._norms() for name in algorithm.norms},
        }

    def step(self, **more: Any) -> None:
        ops.fused_step(self._algorithm.which, **{**self._given, **more})

    def written(self) -> list[torch.Tensor]:
        """Everything that a step writes."""
        names = ("params", "states", "model_params")
        averages = self._given.get("norm_averages")
        return [
            *(tensor for name in names for tensor in self._given[name]),
            self._given["steps"],
            *([] if averages is None else [averages]),
        ]

    def _list(self, number: int, make: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
        positions = range(len(self._sizes))
        return [self._arrange(number, i, make(i).to(self._device)) for i in positions]

    def _normal(self, i: int, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> torch.Tensor:
        values = torch.randn(self._sizes[i], generator=self._generator)
        return values.to(dtypes[i % len(dtypes)])

    def _zeros(self, i: int) -> torch.Tensor:
        return torch.zeros(self._sizes[i])

    def _model_param(self, i: int) -> torch.Tensor:
        return torch.zeros(self._sizes[i], dtype=GRAD_DTYPES[i % 2])

    def _norms(self) -> torch.Tensor:
        return (1 + torch.rand(len(self._sizes), generator=self._generator)).to(self._device)

    def _hyper(self) -> torch.Tensor:
        rows = torch.zeros(2, 12, dtype=torch.float64)
        rows[:, : len(self._algorithm.hyper)] = torch.tensor(self._algorithm.hyper).double()
        rows[1, 0] /= 2
        return rows


def small_sizes(count: int) -> list[int]:
    """From 1 to 40."""
    return torch.randint(1, 41, (count,), generator=torch.Generator().manual_seed(2)).tolist()

"""An optimizer, its parameters and the grads of each step: the same numbers on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from step_case import small_sizes
from torch import nn

from torchamp import optimizers

#: More tensors than a launch's parameter has room for.
MANY = 1300


def adamw(params: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return optimizers.FusedAdamW(params, 0.01)


class OptimizerRun:
    """Steps of parameters on one device."""

    def __init__(
        self,
        device: torch.device,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = adamw,
        count: int = MANY,
        seed: int = 0,
    ) -> None:
        self._device = device
        self._seed = seed
        self._sizes = small_sizes(count)
        self.params = [nn.Parameter(value.clone()) for value in self._normal(-1)]
        self.optimizer = make(self.params)

    def _normal(self, step: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1 + step + 1000 * self._seed)
        values = torch.randn(sum(self._sizes), generator=generator)
        return values.to(self._device).split(self._sizes)

    def renew_grads(self, step: int) -> None:
        """Assigns grads in new memory."""
        for param, grad in zip(self.params, self._normal(step)):
            param.grad = grad

    def refill_grads(self, step: int) -> None:
        """Writes grads to the memory of the previous grads."""
        torch._foreach_copy_([param.grad for param in self.params], self._normal(step))

    def step(self, step: int) -> None:
        """A step with new grads."""
        self.renew_grads(step)
        self.optimizer.step()

    def steps(self, count: int) -> OptimizerRun:
        """Runs this many steps, and returns itself."""
        for step in range(count):
            self.step(step)
        return self

    def written(self) -> list[torch.Tensor]:
        """Everything that steps write."""
        states = [value for param in self.params for value in self.optimizer.state[param].values()]
        return [*self.params, *states]

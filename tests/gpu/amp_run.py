"""Iterations at O2 with given grads: the same numbers on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from optimizer_run import adamw
from torch import nn

from torchamp import amp


class Weights(nn.Module):
    """A module with only parameters."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weights = nn.ParameterList(torch.randn(size, generator=generator) for size in sizes)

    def forward(self) -> torch.Tensor:
        return self.weights[0].float().sum()


class AmpRun:
    """A model with the given parameter sizes in training."""

    def __init__(
        self,
        device: torch.device,
        sizes: Sequence[int],
        make: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] = adamw,
        opt_level: str = "O2",
    ) -> None:
        model = Weights(sizes).to(device)
        self.model, self.optimizer = amp.initialize(
            model, make(model.parameters()), opt_level=opt_level
        )

    def backward(self, grads: Sequence[torch.Tensor]) -> None:
        """A backward that produces the given grads, scaled."""
        with amp.scale_loss(self.model(), self.optimizer) as scaled_loss:
            scaled_loss.backward()
            for param, grad in zip(self.model.parameters(), grads):
                param.grad = grad

    def step(self, grads: Sequence[torch.Tensor]) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        self.backward(grads)
        self.optimizer.step()

    def written(self) -> list[torch.Tensor]:
        """What steps write. Accesses the masters, which ends the deferral of their grads."""
        return [*self.model.parameters(), *amp.master_params(self.optimizer)]

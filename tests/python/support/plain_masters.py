"""A program without amp, for comparison: it may keep float32 masters itself."""

import torch
from apex.optimizers import FusedSGD
from torch import nn

#: How the tests make their optimizers.
MAKERS = {
    "sgd": torch.optim.SGD,
    "fused": FusedSGD,
    "fused, not materialized": lambda groups, **options: FusedSGD(
        groups, materialize_master_grads=False, **options
    ),
}
ZERO = {
    "model to none": lambda models, _: [
        setattr(param, "grad", None) for model in models for param in model.parameters()
    ],
    "model": lambda models, _: [model.zero_grad() for model in models],
    "optimizer": lambda _, optimizers: [o.zero_grad() for o in optimizers],
    "optimizer in place": lambda _, optimizers: [
        o.zero_grad(set_to_none=False) for o in optimizers
    ],
}


class Weights(nn.Module):
    """The product of a float32 and a 16-bit weight. Their numbers are no sums of a few powers of
    two, so that every rounding shows."""

    def __init__(self, start: float, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self.full = nn.Parameter(start * torch.tensor([1.1, 0.7]))
        self.low = nn.Parameter((start * torch.tensor([0.9, 1.3])).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.full.float() * self.low.float()).sum()


class Plain:
    """An optimizer of `groups`, of float32 masters if asked. Adds the grads of losses up in the
    type that it steps in."""

    def __init__(self, make, groups: list[dict], masters: bool, **options) -> None:
        self.pairs: list[tuple] = []
        self.masters = masters
        self.optimizer = make([self._of_masters(group) for group in groups], **options)

    def _of_masters(self, group: dict) -> dict:
        params = list(group["params"])
        masters = [nn.Parameter(p.detach().float()) if self.masters else p for p in params]
        self.pairs += zip(params, masters)
        return {**group, "params": masters}

    def add(self, group: dict) -> None:
        self.optimizer.add_param_group(self._of_masters(group))

    def collect(self, losses: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sets the masters' grads to the sum of the losses' and returns them."""
        params, masters = zip(*self.pairs)
        total = [torch.zeros_like(master) for master in masters]
        for loss in losses:
            grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            total = [t if g is None else t + g.to(t.dtype) for t, g in zip(total, grads)]
        for master, grad in zip(masters, total):
            master.grad = grad
        return [grad.clone() for grad in total]

    def step(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            for param, master in self.pairs:
                param.copy_(master)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether types and numbers are equal; torch.equal compares numbers alone."""
    return one.dtype == other.dtype and torch.equal(one, other)

"""NovoGrad and LAMB, tensor by tensor, as the papers and apex have them."""

from __future__ import annotations

import math
from typing import Any

import torch


class Reference(torch.optim.Optimizer):
    """Steps each parameter that has a grad by `update`; keeps its count of steps."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        stepped = [
            (param, group)
            for group in self.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        factor = self.grad_factor([param.grad for param, _ in stepped])
        for param, group in stepped:
            state = self.state[param]
            state["step"] = state.get("step", 0) + 1
            sign = -1.0 if group["maximize"] else 1.0
            self.update(param, param.grad * (sign * factor), state, group)

    def grad_factor(self, grads: list[torch.Tensor]) -> float:
        return 1.0

    def update(self, param: torch.Tensor, grad: torch.Tensor, state: dict, group: dict) -> None:
        raise NotImplementedError


def averaged(state: dict, name: str, new: torch.Tensor, beta: float, share: float) -> torch.Tensor:
    """The running average `name` of `state` after `new`."""
    state[name] = beta * state.get(name, torch.zeros_like(new)) + share * new
    return state[name]


class NovoGrad(Reference):
    """Ginsburg et al., arXiv:1905.11286."""

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        defaults = dict(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, maximize=False)
        super().__init__(params, {**defaults, "decay_in_moment": False, "lr": lr, **options})

    def update(self, param: torch.Tensor, grad: torch.Tensor, state: dict, group: dict) -> None:
        (beta1, beta2), count, size = group["betas"], state["step"], grad.norm().item()
        before = size if count == 1 else state["norm"]
        state["norm"] = math.sqrt(beta2 * before**2 + (1 - beta2) * size**2)
        divisor = state["norm"] / math.sqrt(1 - beta2**count) + group["eps"]
        if group["decay_in_moment"]:
            grad, divisor = grad / divisor + group["weight_decay"] * param, 1.0
        else:
            param.mul_(1 - group["lr"] * group["weight_decay"])
        average = averaged(state, "average", grad, beta1, 1 - beta1)
        param.sub_(group["lr"] / (1 - beta1**count) / divisor * average)


class LAMB(Reference):
    """You et al., arXiv:1904.00962."""

    def __init__(self, params: Any, lr: float, **options: Any) -> None:
        defaults = dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, maximize=False)
        defaults |= dict(max_grad_norm=1.0, always_adapts=False)
        super().__init__(params, {**defaults, "lr": lr, **options})

    def grad_factor(self, grads: list[torch.Tensor]) -> float:
        norm = math.sqrt(sum(grad.norm().item() ** 2 for grad in grads))
        return min(1.0, self.defaults["max_grad_norm"] / norm) if norm else 1.0

    def update(self, param: torch.Tensor, grad: torch.Tensor, state: dict, group: dict) -> None:
        (beta1, beta2), count, decay = group["betas"], state["step"], group["weight_decay"]
        average = averaged(state, "average", grad, beta1, 1 - beta1) / (1 - beta1**count)
        square = averaged(state, "square", grad**2, beta2, 1 - beta2) / (1 - beta2**count)
        update = average / (square.sqrt() + group["eps"]) + decay * param
        length, size = param.norm().item(), update.norm().item()
        adapts = (decay or group["always_adapts"]) and length and size
        ratio = length / size if adapts else 1.0
        param.sub_(group["lr"] * ratio * update)

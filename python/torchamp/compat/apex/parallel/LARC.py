"""apex's LARC: layer-wise adaptive rates around another optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchamp import ops

__all__ = ["LARC"]


class LARC(torch.optim.Optimizer):
    """Adapts the learning rate to each tensor, then calls `optimizer`'s step.

    That rate is trust_coefficient · ‖param‖ / (‖grad‖ + weight_decay · ‖param‖ + eps), times the
    group's; with `clip` it is at most the group's. Tensors whose param or grad has norm zero take
    the group's, without weight decay.

    An Optimizer, so that schedulers take it; all but step() is the wrapped one's, `optim`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trust_coefficient: float = 0.02,
        clip: bool = True,
        eps: float = 1e-8,
    ) -> None:
        # Not Optimizer's __init__: groups, state and hooks are those of `optimizer`.
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient
        self.clip = clip
        self.eps = eps

    param_groups: Any = property(lambda self: self.optim.param_groups)
    state: Any = property(lambda self: self.optim.state)
    defaults: Any = property(lambda self: self.optim.defaults)

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not there yet: while unpickled
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def state_dict(self) -> dict[str, Any]:
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        self.optim.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optim.add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Adapts the grads, in place, and steps; returns what the closure returned."""
        loss = None if closure is None else closure()
        decays = [group.get("weight_decay", 0) for group in self.param_groups]
        try:
            for group, decay in zip(self.param_groups, decays):
                self._adapt(group, decay)
                group["weight_decay"] = 0
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays):
                group["weight_decay"] = decay
        return loss

    @torch.no_grad()
    def _adapt(self, group: dict[str, Any], decay: float) -> None:
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for param in group["params"]:
            if param.grad is not None:
                by_device.setdefault(param.device, []).append(param)
        for params in by_device.values():
            grads = [param.grad for param in params]
            factors, decays = self._factors(group["lr"], decay, params, grads)
            for param, grad, factor, shrink in zip(params, grads, factors, decays):
                grad.copy_(grad * factor + param * shrink)

    def _factors(
        self, lr: Any, decay: float, params: list[torch.Tensor], grads: list[torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """The factors of each grad and each param in their sum. Does not wait for the device."""
        param_norms, grad_norms = ops.l2norm(params, True)[1], ops.l2norm(grads, True)[1]
        rates = self.trust_coefficient * param_norms / (grad_norms + decay * param_norms + self.eps)
        if self.clip:
            rates = torch.clamp(rates / torch.as_tensor(lr, device=rates.device), max=1.0)
        moves = (param_norms != 0) & (grad_norms != 0)
        factors = torch.where(moves, rates, 1.0)
        return factors.unbind(), torch.where(moves, rates * decay, 0.0).unbind()

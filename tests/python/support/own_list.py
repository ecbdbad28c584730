"""An optimizer as programs write it, which does without its groups' lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class OwnList(torch.optim.Optimizer):
    """Steps a list of its own, by counts that it keeps by id and shares that it puts on what it was
    given."""

    def __init__(self, params: Any, lr: float) -> None:
        self.own: list[list[torch.Tensor]] = []
        self.counts: dict[int, int] = {}
        super().__init__(params, {"lr": lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.own.append(list(self.param_groups[-1]["params"]))
        for i, param in enumerate(self.own[-1]):
            param.share = 0.5 ** (i % 3)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    @torch.no_grad()
    def shrink(self) -> None:
        for param in sum(self.own, []):
            param.mul_(0.75)

    @torch.no_grad()
    def damp(self) -> None:
        for param in sum(self.own, []):
            if param.grad is not None:
                param.grad.mul_(0.5)

    def count(self) -> int:
        return len(self.counts)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, params in zip(self.param_groups, self.own):
            for param in params:
                if param.grad is not None:
                    count = self.counts[id(param)] = self.counts.get(id(param), 0) + 1
                    param.sub_(param.grad, alpha=group["lr"] * param.share / count)
        return loss

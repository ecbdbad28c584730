"""Hand-written mixed precision with float32 masters, which amp must match bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from reference.loss_scaler import LossScaler


class Trained:
    """A low-precision model, its float32 masters, and an optimizer of the masters."""

    def __init__(self, model: nn.Module, make_optimizer: Callable, dtype: torch.dtype) -> None:
        self.masters = copy.deepcopy(model)
        self.model = model.to(dtype)
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.float()
        self.dtype = dtype
        self.optimizer = make_optimizer(self.masters)
        self.must_skip = False
        self._write_model()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.to(self.dtype)).float()

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self.model.parameters(), self.masters.parameters()))

    def zero_grad(self) -> None:
        self.must_skip = False
        for param, master in self.pairs():
            param.grad = master.grad = None

    def take_grads(self, scale: float) -> bool:
        """Adds the unscaled model grads to the masters' grads; returns whether any is not
        finite."""
        overflowed = False
        for param, master in self.pairs():
            if param.grad is None:
                continue
            grad = param.grad.float() / scale
            overflowed |= not bool(grad.isfinite().all())
            master.grad = grad if master.grad is None else master.grad + grad
            param.grad = None
        return overflowed

    def step(self) -> None:
        if not self.must_skip:
            self.optimizer.step()
            self._write_model()
        self.must_skip = False
        for master in self.masters.parameters():
            master.grad = None

    @torch.no_grad()
    def _write_model(self) -> None:
        for param, master in self.pairs():
            param.copy_(master)


def backward(loss: torch.Tensor, trained: list[Trained], scaler: LossScaler) -> None:
    """The scaled backward of a loss of these models; all skip if any overflows."""
    scale = scaler.loss_scale
    (loss * scale).backward()
    overflowed = [one.take_grads(scale) for one in trained]
    for one in trained:
        one.must_skip |= any(overflowed)
    scaler.update(any(overflowed))

"""apex's loss scalers for loops written by hand."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchamp import ops

__all__ = ["DynamicLossScaler", "LossScaler"]


class LossScaler:
    """A fixed loss scale."""

    def __init__(self, scale: float = 1) -> None:
        self.cur_scale: float = scale

    @property
    def loss_scale(self) -> float:
        """The factor of the loss."""
        return self.cur_scale

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """False: a fixed scale is not judged."""
        return False

    def update_scale(self, overflow: bool) -> None:
        """Does nothing."""

    def scale_gradient(
        self,
        module: torch.nn.Module,
        grad_in: tuple[torch.Tensor, ...],
        grad_out: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, ...]:
        """`grad_in`, scaled: a backward hook for modules."""
        return tuple(None if grad is None else grad * self.loss_scale for grad in grad_in)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """The backward of the scaled loss."""
        (loss * self.loss_scale).backward(retain_graph=retain_graph)


class DynamicLossScaler(LossScaler):
    """A loss scale that falls by `scale_factor` with every overflow, to 1 at the least, and rises
    by it after each `scale_window` iterations without one."""

    cur_scale: float

    def __init__(
        self, init_scale: float = 2**32, scale_factor: float = 2.0, scale_window: int = 1000
    ) -> None:
        super().__init__(init_scale)
        self.cur_iter: int = 0
        self.last_overflow_iter: int = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """Whether a grad of `params` holds anything that is not finite. Waits for the device."""
        grads = [param.grad for param in params if param.grad is not None]
        if not grads:
            return False
        found_inf = torch.zeros((), device=grads[0].device)
        ops.check(grads, found_inf)
        return bool(found_inf)

    def update_scale(self, overflow: bool) -> None:
        """Takes an iteration into account."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1

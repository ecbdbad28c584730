"""apex.amp.opt: the optimizer that a handle wraps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchamp import Amp

__all__ = ["OptimWrapper"]


class Handle(Protocol):
    """The interface of AmpHandle that a wrapper uses."""

    loss_scale: float | str

    def is_active(self) -> bool: ...


class OptimWrapper:
    """An optimizer whose losses are scaled by `amp_handle.loss_scale`, each of the `num_loss` of a
    step by its own scaler, in their order. Everything else is the optimizer's."""

    def __init__(self, optimizer: torch.optim.Optimizer, amp_handle: Handle, num_loss: int) -> None:
        self._optimizer, self._num_loss, self._next_loss = optimizer, num_loss, 0
        self._amp: Amp | None = None
        if amp_handle.is_active():
            self._amp = Amp(
                [],
                optimizer,
                "O0",
                cast_model_type=False,
                loss_scale=amp_handle.loss_scale,
                num_losses=num_loss,
                verbosity=0,
            )

    def scale_loss(
        self, loss: torch.Tensor, loss_id: int | None = None
    ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context that gives the scaled loss. Raises IndexError after more than `num_loss`
        losses without a step."""
        if self._amp is None:
            return contextlib.nullcontext(loss)
        if loss_id is None:
            loss_id = self._next_loss
            self._next_loss += 1
        return self._amp.scale_loss(loss, loss_id=loss_id)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps, unless a loss since the last step overflowed."""
        if closure is not None and self._amp is not None:
            raise NotImplementedError(
                "OptimWrapper.step: expected no closure, whose loss cannot be scaled, got one"
            )
        self._next_loss = 0
        return self._optimizer.step() if closure is None else self._optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

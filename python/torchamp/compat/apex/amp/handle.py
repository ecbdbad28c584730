"""apex.amp.handle: the contexts of apex.amp, and what amp.init returns, from before
amp.initialize."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from torchamp._load import _C
from torchamp.amp import disable_casts, scale_loss
from torchamp.amp._autocast import Ban, OpenCasts
from torchamp.compat.apex.amp.opt import OptimWrapper

__all__ = ["AmpHandle", "NoOpHandle", "disable_casts", "scale_loss"]


class AmpHandle:
    """Casts of O1 in this thread, until _deactivate(), and scaled losses.

    loss_scale: "dynamic" or a number. enable_caching: accepted; weights are cast at each use.
    """

    has_cache = False

    def __init__(
        self,
        loss_scale: float | str = "dynamic",
        enable_caching: bool = True,
        verbose: bool = False,
        *,
        casts: OpenCasts | None = None,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self.loss_scale: float | str = loss_scale
        self.verbose: bool = verbose
        self.cache: dict[torch.Tensor, torch.Tensor] = {}
        types = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._casts = OpenCasts(types, dtype) if casts is None else casts
        self._shield: Any = None
        self._wrappers: dict[torch.optim.Optimizer, OptimWrapper] = {}

    def is_active(self) -> bool:
        return self._is_active

    @property
    def _is_active(self) -> bool:
        return self._casts.is_open and self._shield is None

    @_is_active.setter
    def _is_active(self, value: bool) -> None:
        """False casts nothing in this thread until it is set again."""
        if self._shield is not None:
            self._shield.__exit__(None, None, None)
        self._shield = None if value else _C.ShieldFromAutocast()
        if self._shield is not None:
            self._shield.__enter__()

    def _deactivate(self) -> None:
        """Ends the casts, and what amp.init has allowed."""
        self._is_active = True
        self._casts.close()
        Ban.is_lifted = False

    def _disable_casts(self) -> contextlib.AbstractContextManager[None]:
        """As amp.disable_casts()."""
        return disable_casts()

    def _clear_cache(self) -> None:
        """Does nothing: no casts are kept."""

    def remove_cache(self, param: torch.Tensor) -> None:
        """Does nothing: no casts are kept."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, num_loss: int = 1) -> OptimWrapper:
        """The optimizer with its own scale_loss, for `num_loss` losses per step."""
        return OptimWrapper(optimizer, self, num_loss)

    def scale_loss(
        self, loss: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context that gives the scaled loss; afterwards the optimizer's grads are true, and its
        next step is skipped if they are not finite."""
        if optimizer not in self._wrappers:
            self._wrappers[optimizer] = self.wrap_optimizer(optimizer)
        return self._wrappers[optimizer].scale_loss(loss, loss_id=0)


class NoOpHandle(AmpHandle):
    """The handle of amp.init(enabled=False): casts and scales nothing."""

    def __init__(self) -> None:
        self.loss_scale: float | str = 1.0
        self.verbose: bool = False
        self.cache: dict[torch.Tensor, torch.Tensor] = {}

    _is_active = False

    def _deactivate(self) -> None:
        """Does nothing."""

    def scale_loss(
        self, loss: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> contextlib.AbstractContextManager[torch.Tensor]:
        """A context that gives the loss as it is."""
        return contextlib.nullcontext(loss)

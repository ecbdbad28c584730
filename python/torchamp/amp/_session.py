"""What one initialize made, shared by the models and optimizers that it returned."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING

import torch

from torchamp import ops
from torchamp._load import _C
from torchamp.amp import _patches
from torchamp.amp._report import Reporter
from torchamp.amp._settings import Settings

if TYPE_CHECKING:
    from torchamp.amp._optimizer_state import OptimizerState


class Session:
    """Settings, loss scalers, masters and O1's autocast of one initialize.

    Models and optimizers hold it; it holds neither, so that all are freed with the last of them.
    """

    def __init__(
        self,
        models: list[torch.nn.Module],
        device: torch.device,
        settings: Settings,
    ) -> None:
        self.settings = settings
        self.device = device
        self.scalers = [_make_scaler(settings, self.device) for _ in range(settings.num_losses)]
        #: Kept alive here, for as long as a model or an optimizer of the session lives.
        self.weights: list[_C.Masters] = []
        #: Of the optimizers that are still there.
        self.optimizer_states: weakref.WeakSet[OptimizerState] = weakref.WeakSet()
        self.reporter = Reporter(settings.verbosity, _names_of(models))
        self.casts = _open_casts(models, settings)

    @property
    def is_dynamic(self) -> bool:
        return any(scaler.dynamic for scaler in self.scalers)

    @property
    def is_identity(self) -> bool:
        """Whether no loss is scaled."""
        return all(scaler.is_identity for scaler in self.scalers)

    def scaler(self, loss_id: int) -> _C.LossScaler:
        """Raises IndexError for a loss that initialize was not told of."""
        if not 0 <= loss_id < len(self.scalers):
            raise IndexError(
                f"scale_loss: expected loss_id to be below num_losses, {len(self.scalers)}, "
                f"got {loss_id}"
            )
        return self.scalers[loss_id]

    def leave_step_to_the_program(self, loss_id: int) -> None:
        """Forgets overflows of a loss whose scale the program has updated itself: whether to step
        is its decision."""
        self.scalers[loss_id].forget_deferred()
        for state in self.optimizer_states:
            state.core.clear_overflows()

    def close(self) -> None:
        """Ends O1's autocast."""
        if self.casts is not None:
            self.casts.close()


def _make_scaler(settings: Settings, device: torch.device) -> _C.LossScaler:
    rule = ops.ScaleUpdate(
        min_scale=settings.min_loss_scale or 0.0, max_scale=settings.max_loss_scale
    )
    return _C.LossScaler(settings.properties.loss_scale, rule=rule, device=device)


def _names_of(models: list[torch.nn.Module]) -> dict[int, str]:
    """The models' parameters' names by id; with the model's number if there are several."""
    names = {}
    for i, model in enumerate(models):
        prefix = f"models[{i}]." if len(models) > 1 else ""
        for name, param in model.named_parameters():
            names.setdefault(id(param), prefix + name)
    return names


class OpenCasts:
    """O1's casts in the thread that made this, until closed or dropped."""

    def __init__(self, device_types: list[str], dtype: torch.dtype) -> None:
        self._is_open = False
        self._autocast = _C.OpenAutocast(device_types, dtype)
        self._is_open = True
        _patches.OPEN.hold()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def join(self) -> contextlib.AbstractContextManager[None]:
        """A context in which any thread casts as the one that made this."""
        return _C.JoinAutocast(self._autocast)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._autocast.close()
            _patches.OPEN.release()

    __del__ = close


def _open_casts(models: list[torch.nn.Module], settings: Settings) -> OpenCasts | None:
    dtype = settings.properties.autocast_type
    if dtype is None:
        return None
    types = {param.device.type for model in models for param in model.parameters()}
    return OpenCasts(sorted(types), dtype)

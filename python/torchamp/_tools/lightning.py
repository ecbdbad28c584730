"""The shared base of the precision plugins for both of Lightning's packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchamp import amp
from torchamp.amp._amp import Amp
from torchamp.amp._run.settings import settings_for


class PrecisionMethods:
    """Trains at an opt level: `Trainer(plugins=[AmpPrecision("O2")])`.

    Each submodule with parameters is a model of torchamp.Amp: its calls cast what goes in and what
    comes out. So `self(x)` and `self.net(x)` both work, and losses and metrics are float32. At the
    end of a fit the weights are float32 again, the masters' values.

    Gradients are clipped, by norm and by value, as the optimizers step by them. Checkpoints hold
    the masters' values and the loss scales. Steps are skipped after an overflow; Lightning counts
    those in global_step, and steps schedulers, too.

    A fit raises RuntimeError with DistributedDataParallel at a level that casts the model.

    Args:
        opt_level, overrides: as for amp.initialize.
    """

    #: A callback with the methods of ReleaseMethods.
    _release_callback: type

    def __init__(self, opt_level: str = "O1", **overrides: Any) -> None:
        super().__init__()
        self._settings = settings_for(opt_level, **overrides)
        self._options = {"opt_level": opt_level, **overrides}
        #: The Amp of the last fit.
        self._amp: Amp | None = None

    def connect(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        lr_schedulers: list[Any],
    ) -> tuple[torch.nn.Module, list[torch.optim.Optimizer], list[Any]]:
        """Initializes, where there are optimizers: for a fit."""
        if optimizers:
            module = self._unwrapped(model)
            scales = self.state_dict()
            self._amp = Amp(list(_called(module)), optimizers, **self._options)
            if scales:
                self._amp.load_state_dict(scales)
            callbacks, kind = module.trainer.callbacks, self._release_callback
            # Behind those that save checkpoints, and without the last fit's.
            callbacks[:] = [each for each in callbacks if not isinstance(each, kind)]
            callbacks.append(kind(self._amp))
        return model, optimizers, lr_schedulers

    def _unwrapped(self, model: torch.nn.Module) -> Any:
        if not isinstance(model, DistributedDataParallel):
            return model
        if self._settings.properties.cast_model_type not in (None, torch.float32):
            raise RuntimeError(
                "AmpPrecision: expected opt_level O0, O1 or O4 with DistributedDataParallel, which "
                "Lightning puts around the model before there are optimizers, got "
                f"{self._settings.properties.opt_level}"
            )
        return model.module

    def backward(
        self, tensor: torch.Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Runs the scaled loss's. The grads of the optimizers' parameters are unscaled."""
        assert self._amp is not None
        with self._amp.scale_loss(tensor) as scaled_loss:
            super().backward(scaled_loss, model, optimizer, *args, **kwargs)  # type: ignore[misc]

    def optimizer_step(
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Runs the closure, clips and steps; no step where training_step returned None."""
        result = closure()
        self._after_closure(model, optimizer)  # type: ignore[attr-defined]
        if result is None and model.automatic_optimization:
            return None
        return optimizer.step(**kwargs)

    def main_params(self, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        """The parameters that the optimizer steps."""
        return amp.master_params(optimizer)

    def clip_grad_by_norm(self, optimizer: torch.optim.Optimizer, clip_val: float) -> None:
        """As amp.clip_grad_norm_."""
        amp.clip_grad_norm_(optimizer, clip_val)

    def clip_grad_by_value(self, optimizer: torch.optim.Optimizer, clip_val: float) -> None:
        """As amp.clip_grad_value_."""
        amp.clip_grad_value_(optimizer, clip_val)

    def state_dict(self) -> dict[str, Any]:
        """The loss scalers', as apex lays it out."""
        return {} if self._amp is None else dict(self._amp.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what state_dict() gave."""
        if self._amp is not None:
            self._amp.load_state_dict(state_dict)


class ReleaseMethods:
    """Gives the model back before Lightning moves it off the device."""

    def __init__(self, amp: Amp) -> None:
        super().__init__()
        self.amp = amp

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Makes model and optimizers plain float32 ones again."""
        self.amp.release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Makes them plain again, too."""
        self.amp.release()


def _called(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The submodules that a module with them calls, looking into lists and dicts of modules."""
    for child in module.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from _called(child)
        elif any(True for _ in child.parameters()):
            yield child

"""`optimizer._amp_stash` and the methods beside it that programs call: when they restore masters,
and in a scale_loss of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchamp._load import _C
from torchamp.amp._masters import LOW_PRECISION, params_of
from torchamp.amp._session import in_training
from torchamp.compat.apex.amp.scaler import LossScaler


class Stash:
    """An optimizer's masters and the parameters they belong to, in apex's lists: by group, or all
    of them. From the first look at a list on, masters show grads, as by amp.master_params."""

    #: apex makes masters with the first backward; here they are made by initialize.
    lazy_init_called = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._backward: _C.Backward | None = None
        self._is_patched_by_program = False

    @property
    def already_patched(self) -> bool:
        """Whether the next step will be skipped: by amp, which waits for the device, or by a
        program that sets this."""
        return self._is_patched_by_program or self._state.core.has_overflowed()

    @already_patched.setter
    def already_patched(self, value: bool) -> None:
        self._is_patched_by_program = value

    @property
    def params_have_scaled_gradients(self) -> bool:
        """Whether a scale_loss, or a backward that is yet to be ended, left its grads scaled. What
        a program sets changes nothing."""
        return self._backward is not None or self._state.core.grads_are_scaled

    @params_have_scaled_gradients.setter
    def params_have_scaled_gradients(self, value: bool) -> None: ...

    def begin_backward(self) -> None:
        """Sets the grads of earlier backwards aside, until end_backward()."""
        self._backward = None  # of a backward that failed: its grads are dropped
        scaler = self._state.session.scalers[0]
        backward = _C.Backward([self._state.core], scaler, delay_overflow_check=True)
        with self._state.session.shards.mirrored():
            backward.__enter__()
        self._backward = backward

    def end_backward(self, loss_scaler: LossScaler) -> None:
        """Unscales the grads since begin_backward() and adds those that it has set aside. The scale
        stays as it is until `loss_scaler.update_scale()`, whose result says whether to step.

        Raises RuntimeError without begin_backward(), and for another scaler than the first one of
        the optimizer's initialize.
        """
        backward, self._backward = self._backward, None
        if backward is None:
            raise RuntimeError(
                "_post_amp_backward: expected _prepare_amp_backward() before the backward, got none"
            )
        if loss_scaler._core is not self._state.session.scalers[0]:
            raise RuntimeError(
                "_post_amp_backward: expected loss_scaler to be the first of those that initialize "
                "made, loss_scalers[0], got another; use amp.scale_loss, which takes a loss_id"
            )
        with self._state.session.shards.mirrored():
            backward.__exit__(None)

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        return self._groups(lambda param, master: param if param is not master else None)

    @property
    def fp32_from_fp16_groups(self) -> list[list[torch.Tensor]]:
        return self._groups(lambda param, master: master if param is not master else None)

    @property
    def fp32_from_fp32_groups(self) -> list[list[torch.Tensor]]:
        return self._groups(lambda param, master: param if param is master else None)

    @property
    def all_fp16_params(self) -> list[torch.Tensor]:
        """The model's 16-bit parameters, also where they have no masters."""
        return [p for p in self._model_params() if p.dtype in LOW_PRECISION]

    @property
    def all_fp32_params(self) -> list[torch.Tensor]:
        """The model's others."""
        return [p for p in self._model_params() if p.dtype not in LOW_PRECISION]

    @property
    def all_fp32_from_fp16_params(self) -> list[torch.Tensor]:
        return sum(self.fp32_from_fp16_groups, [])

    @property
    def all_fp32_from_fp32_params(self) -> list[torch.Tensor]:
        return sum(self.fp32_from_fp32_groups, [])

    @property
    def _state(self) -> Any:
        return in_training(self._optimizer())

    def _model_params(self) -> list[torch.Tensor]:
        return params_of([self._optimizer()])

    def _groups(self, choose: Callable) -> list[list[torch.Tensor]]:
        self._state.core.show_grads()
        groups = [
            [choose(param, _C.stepped_for(param)) for param in group["params"]]
            for group in self._optimizer().param_groups
        ]
        return [[param for param in group if param is not None] for group in groups]


def attach_stash(optimizer: Any) -> None:
    """Gives an optimizer that initialize returned apex's attributes; leaves others alone."""
    state = in_training(optimizer)
    if state is None:
        return
    stash = Stash(optimizer)
    vars(optimizer).update(
        _amp_stash=stash,
        _prepare_amp_backward=stash.begin_backward,
        _post_amp_backward=stash.end_backward,
        _lazy_init_maybe_master_weights=_masters_are_there,
        _amp_lazy_init=_masters_are_there,
        _master_params_to_model_params=state.core.copy_to_model,
    )


def _masters_are_there() -> None:
    """Does nothing: initialize has made the masters."""

"""`optimizer._amp_stash` and the methods beside it that programs call when they restore masters."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch

from torchamp._load import _C
from torchamp.amp._casts.masters import LOW_PRECISION, params_of
from torchamp.amp._run.session import in_training


class Stash:
    """An optimizer's masters and the parameters they belong to, in apex's lists: by group, or all
    of them. From the first look at a list on, masters show grads, as by amp.master_params."""

    #: apex makes masters with the first backward; here they are made by initialize.
    lazy_init_called = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
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
        """Whether a scale_loss left its grads scaled."""
        return self._state.core.grads_are_scaled

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        return [[param for param, own in group if param is not own] for group in self._pairs()]

    @property
    def fp32_from_fp16_groups(self) -> list[list[torch.Tensor]]:
        return [[own for param, own in group if param is not own] for group in self._pairs()]

    @property
    def fp32_from_fp32_groups(self) -> list[list[torch.Tensor]]:
        return [[param for param, own in group if param is own] for group in self._pairs()]

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

    def _pairs(self) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
        """By group, the parameters with what is stepped for them: their master, or themselves."""
        self._state.core.show_grads()
        groups = self._optimizer().param_groups
        return [[(param, _C.stepped_for(param)) for param in group["params"]] for group in groups]


def attach_stash(optimizer: Any) -> None:
    """Gives an optimizer that initialize returned apex's attributes; leaves others alone."""
    state = in_training(optimizer)
    if state is None:
        return
    stash = Stash(optimizer)
    vars(optimizer).update(
        _amp_stash=stash,
        _prepare_amp_backward=_refuse_own_scale_loss,
        _post_amp_backward=_refuse_own_scale_loss,
        _lazy_init_maybe_master_weights=_masters_are_there,
        _amp_lazy_init=_masters_are_there,
        _master_params_to_model_params=state.core.copy_to_model,
    )


def _masters_are_there() -> None:
    """Does nothing: initialize has made the masters."""


def _refuse_own_scale_loss(*args: Any) -> NoReturn:
    raise RuntimeError(
        "torchamp has no _prepare_amp_backward and _post_amp_backward: use apex.amp.scale_loss"
    )

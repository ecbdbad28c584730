"""`optimizer._amp_stash` and the methods beside it that programs call when they restore masters."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchamp.amp._optimizer import AmpOptimizer


class Stash:
    """An optimizer's masters and the parameters they belong to, in apex's lists: by group, or all
    of them. Looking at a list makes master grads for good, as amp.master_params does."""

    #: apex makes masters with the first backward; here they are made by initialize.
    lazy_init_called = True

    def __init__(self, optimizer: AmpOptimizer) -> None:
        self._optimizer = weakref.ref(optimizer)

    @property
    def already_patched(self) -> bool:
        """Whether the next step will be skipped. Waits for the device."""
        return self._state.core.has_overflowed()

    @property
    def params_have_scaled_gradients(self) -> bool:
        """Whether a scale_loss left its grads scaled."""
        return self._state.core.grads_are_scaled

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
        return sum(self.fp16_groups, [])

    @property
    def all_fp32_from_fp16_params(self) -> list[torch.Tensor]:
        return sum(self.fp32_from_fp16_groups, [])

    @property
    def all_fp32_from_fp32_params(self) -> list[torch.Tensor]:
        return sum(self.fp32_from_fp32_groups, [])

    @property
    def _state(self) -> Any:
        return self._optimizer()._torchamp

    def _groups(self, choose: Callable) -> list[list[torch.Tensor]]:
        self._state.accesses.record()
        params = self._state.core.params()
        chosen = {id(each.master): choose(each.model, each.master) for each in params}
        groups = [
            [chosen[id(p)] for p in group["params"]] for group in self._optimizer().param_groups
        ]
        return [[param for param in group if param is not None] for group in groups]


def attach_stash(optimizer: Any) -> None:
    """Gives an optimizer that initialize returned apex's attributes; leaves others alone."""
    if not isinstance(optimizer, AmpOptimizer):
        return
    vars(optimizer).update(
        _amp_stash=Stash(optimizer),
        _lazy_init_maybe_master_weights=_masters_are_there,
        _amp_lazy_init=_masters_are_there,
        _master_params_to_model_params=optimizer._torchamp.core.copy_to_model,
    )


def _masters_are_there() -> None:
    """Does nothing: initialize has made the masters."""

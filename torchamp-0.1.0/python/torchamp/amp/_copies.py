"""Copies and pickles of what initialize returned: plain models and optimizers in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._state_dicts import float32_of, unhook_state_dict
from torchamp.amp._swap_class import Swapped, restore_class


class PlainState(NamedTuple):
    """The state of a model or an optimizer, of which copy and pickle make a plain one."""

    own: Any
    #: Tensors of the model, and their float32 values.
    values: list[tuple[torch.Tensor, torch.Tensor]]

    def set(self, set_own: Callable) -> None:
        if self.own is not None:
            set_own(self.own)
        for tensor, value in self.values:
            tensor.data = value


def plain_state(own: Any, tensors: Iterable[torch.Tensor], cast_to: Any) -> PlainState:
    """own: as the user's class gives it. cast_to: what initialize has made of `tensors`."""
    return PlainState(own, list(_values(tensors, cast_to)))


def _values(
    tensors: Iterable[torch.Tensor], cast_to: torch.dtype | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for tensor in tensors:
        if tensor.dtype == cast_to and cast_to in LOW_PRECISION:
            yield tensor, float32_of(tensor, tensor.detach())


def make_plain(model: torch.nn.Module) -> None:
    """Makes `model`, a copy of one in training, the user's own."""
    unhook_state_dict(model)
    restore(module for module in model.modules() if isinstance(module, Swapped))


def restore(models: Iterable[Any]) -> None:
    """Gives each its class and its forward back."""
    for model in list(models):
        state = vars(model).pop("_torchamp", None)
        restore_class(model)
        if state is not None and state.inner_forward is not None:
            vars(model)["forward"] = state.inner_forward
        for module in model.modules():
            if isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()

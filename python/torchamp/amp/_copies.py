"""Copies and pickles of the models that initialize returned: plain float32 models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from torchamp.amp._masters import LOW_PRECISION
from torchamp.amp._state_dicts import float32_of, unhook_state_dict
from torchamp.amp._swap_class import Swapped, restore_class


class PlainState(NamedTuple):
    """The state of a model, of which copy and pickle make a plain float32 one."""

    own: Any
    #: Tensors of the model, and their float32 values.
    values: list[tuple[torch.Tensor, torch.Tensor]]


def plain_state(model: torch.nn.Module, own: Any, cast_to: torch.dtype | None) -> PlainState:
    """own: as the user's class gives it. cast_to: what initialize has made of the model."""
    return PlainState(own, list(_values(model, cast_to)))


def _values(
    model: torch.nn.Module, cast_to: torch.dtype | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype == cast_to and cast_to in LOW_PRECISION:
            yield tensor, float32_of(tensor, tensor.detach())


def set_plain_state(model: torch.nn.Module, state: PlainState, set_own: Callable) -> None:
    """Makes `model`, which is being copied, what amp.release would make of the original."""
    if state.own is not None:
        set_own(state.own)
    for tensor, value in state.values:
        tensor.data = value
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

"""The models and optimizers of one initialize."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchamp._load import _C
from torchamp.amp._run.ranks import DataParallel


class Members:
    """Those of one session. They hold it and not the reverse, so that all are freed with the last
    of them."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._parts: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        #: One an optimizer. Kept alive here, for as long as a member lives.
        self.states: list[_C.OptimizerState] = []
        #: One a model: what its forwards report to.
        self.data_parallel: list[DataParallel] = []
        #: The handles of the hooks that the state dicts of models and optimizers have.
        self.hooks: list[RemovableHandle] = []

    def add_model(self, model: torch.nn.Module, scalers: Sequence[_C.LossScaler]) -> DataParallel:
        """Returns what its forwards report to."""
        self._models.append(weakref.ref(model))
        self.data_parallel.append(DataParallel(model, scalers))
        return self.data_parallel[-1]

    def add_part(self, module: torch.nn.Module) -> None:
        """Adds a module in a model whose own calls cast."""
        self._parts.append(weakref.ref(module))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def models(self) -> list[Any]:
        """The models that still exist."""
        return _existing(self._models)

    def parts(self) -> list[Any]:
        """The modules in models whose own calls cast, as far as they still exist."""
        return _existing(self._parts)

    def optimizers(self) -> list[Any]:
        """The optimizers that still exist."""
        return _existing(self._optimizers)

    def remove_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()


def _existing(references: list[weakref.ref[Any]]) -> list[Any]:
    return [each for each in (reference() for reference in references) if each is not None]

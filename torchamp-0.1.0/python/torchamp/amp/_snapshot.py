"""What initialize is about to change, which comes back if it raises."""

from __future__ import annotations

from typing import Any

import torch


class Snapshot:
    """Of models and optimizers before initialize."""

    def __init__(
        self, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
    ) -> None:
        self._tensors = [
            (tensor, tensor.data, tensor.grad)
            for model in models
            for tensor in (*model.parameters(), *model.buffers())
        ]
        modules = [module for model in models for module in model.modules()]
        self._objects = [(each, type(each), dict(vars(each))) for each in (*modules, *optimizers)]
        self._groups = [
            (group, dict(group), list(group["params"]))
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        self._states = [(each.state, dict(each.state)) for each in optimizers]

    def restore(self) -> None:
        for each, kind, attributes in self._objects:
            if type(each) is not kind:
                each.__class__ = kind
            _refill(vars(each), attributes)
        for tensor, data, grad in self._tensors:
            tensor.grad, tensor.data, tensor.grad = None, data, grad
        for group, items, params in self._groups:
            _refill(group, items)
            if isinstance(group["params"], list):
                group["params"][:] = params
        for held, states in self._states:
            _refill(held, states)


def _refill(held: dict, items: dict[Any, Any]) -> None:
    held.clear()
    held.update(items)

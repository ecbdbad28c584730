"""Stage 3: keep masters. Which tensors have one, and what optimizers hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses import FakeTensor

from torchamp._arguments import expect, listed
from torchamp._load import _C
from torchamp._shards import shard_of

LOW_PRECISION = (torch.float16, torch.bfloat16)


def is_left_alone(tensor: torch.Tensor) -> bool:
    """Whether it is a frozen tensor of a class that keeps its elements elsewhere, as those of
    quantized bases do. It stays as it is at every level."""
    dispatch = type(tensor).__torch_dispatch__
    has_own = dispatch is not torch.Tensor.__torch_dispatch__ and not isinstance(tensor, FakeTensor)
    may_be = has_own and not tensor.requires_grad and tensor.layout is torch.strided
    return may_be and not _C.has_memory(shard_of(tensor))


def may_be_cast(tensor: torch.Tensor) -> bool:
    """Whether initialize may have given it its 16 bits."""
    return tensor.dtype in LOW_PRECISION and not is_left_alone(tensor)


def mastered(model_param: torch.Tensor) -> _C.Param | None:
    """The Param of a model's tensor that has a master of its own; None if it has none."""
    found = _C.param_of(model_param)
    return found if found is not None and found.has_master else None


def check_optimizer(function: str, optimizer: Any, name: str = "optimizer") -> None:
    """Raises TypeError, which names the function and the argument, unless it has parameters in
    groups, as a torch.optim.Optimizer has."""
    has_params = isinstance(optimizer, (torch.nn.Module, torch.Tensor))
    if has_params:
        remedy = "pass the optimizer that trains it"
    else:
        is_some = isinstance(optimizer, Iterable) and not isinstance(optimizer, str)
        remedy = "pass the optimizer itself" if is_some else ""
    is_right = hasattr(optimizer, "param_groups")
    expect(is_right, function, name, "a torch.optim.Optimizer", optimizer, remedy)


def params_of(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Every tensor in the optimizers' groups, in order."""
    return [
        param
        for optimizer in optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    ]


def listed_optimizers(function: str, optimizers: Any) -> list:
    """Optimizers, or one, as a list. Raises TypeError, which names the function and the argument,
    for anything else."""
    chosen = listed(function, "optimizers", optimizers)
    for i, optimizer in enumerate(chosen):
        check_optimizer(function, optimizer, f"optimizers[{i}]")
    return chosen

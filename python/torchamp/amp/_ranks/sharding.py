"""What initialize demands of shard_masters, and what ranks start from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from torchamp._shards import is_dtensor
from torchamp.amp._masters import params_of
from torchamp.amp._ranks.agreement import check_group
from torchamp.amp._settings import Settings

#: Classes of optimizers whose step of an element depends on others.
_NOT_ELEMENTWISE = {
    *("LAMB", "Lamb", "FusedLAMB", "FusedMixedPrecisionLamb", "LARS", "FusedLARS"),
    *("NovoGrad", "FusedNovoGrad", "Adafactor", "Muon", "Shampoo", "SOAP", "LBFGS"),
}


def check_sharding(optimizers: list[torch.optim.Optimizer], settings: Settings, group: Any) -> None:
    """Raises TypeError, ValueError or RuntimeError for a `group`, not None, that cannot shard the
    masters of `optimizers`."""
    if group is None:
        return
    check_group("initialize", "shard_masters", group)
    level = settings.properties.opt_level
    if not settings.keeps_masters or settings.input_type not in (torch.float16, torch.bfloat16):
        raise RuntimeError(
            "initialize: expected shard_masters at an opt_level with masters, O2 or O5, got "
            f"{level}{'' if level not in ('O2', 'O5') else ' without masters'}"
        )
    if len(optimizers) != 1:
        raise ValueError(
            f"initialize: expected one optimizer with shard_masters, got {len(optimizers)}; make "
            "parameter groups of one"
        )
    if any(map(is_dtensor, params_of(optimizers))):
        raise TypeError(
            "initialize: expected plain parameters with shard_masters, got DTensors, whose float32 "
            "shards are the masters already; leave out shard_masters"
        )
    _check_elementwise(optimizers[0])


def _check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    found = [each.__name__ for each in type(optimizer).__mro__ if each.__name__ in _NOT_ELEMENTWISE]
    if found:
        raise TypeError(
            "initialize: expected an optimizer that steps each element by itself with "
            f"shard_masters, got a {type(optimizer).__name__}; Adam, AdamW, SGD and Adagrad do"
        )


def to_shard(
    models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
) -> list[torch.Tensor]:
    """What the optimizer steps, in the order of the models, which is the forward's if any is."""
    stepped = dict.fromkeys(params_of(optimizers))
    ordered = dict.fromkeys(
        param for model in models for param in model.parameters() if param in stepped
    )
    return list(ordered | stepped)


def check_same_on_all_ranks(
    params: Sequence[torch.Tensor], device: torch.device, group: distributed.ProcessGroup
) -> None:
    """Raises RuntimeError, on all ranks, unless all have parameters of the same sizes and dtypes
    in the same order. Waits for the device."""
    layout = [(list(param.shape), str(param.dtype), param.requires_grad) for param in params]
    digest = int.from_bytes(hashlib.sha256(repr(layout).encode()).digest()[:7], "big")
    largest = torch.tensor([digest, -digest], device=device)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=group)
    if largest.tolist() != [digest, -digest]:
        raise RuntimeError(
            "initialize: expected all ranks of shard_masters to have the same parameters, in "
            f"sizes, dtype, requires_grad and order, got {len(params)} on rank {group.rank()} "
            "that are not those of all"
        )


@torch.no_grad()
def share_start(
    models: list[torch.nn.Module],
    params: Sequence[torch.Tensor],
    group: distributed.ProcessGroup,
) -> None:
    """Gives all ranks the first rank's parameters, in float32, and buffers."""
    buffers = [buffer for model in models for buffer in model.buffers()]
    for tensor in dict.fromkeys([*params, *buffers]):
        shared = tensor.detach().contiguous()
        distributed.broadcast(shared, distributed.get_global_rank(group, 0), group=group)
        tensor.copy_(shared)

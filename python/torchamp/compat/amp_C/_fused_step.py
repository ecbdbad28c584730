"""One fused step of torchamp's on lists of tensors, for amp_C's functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Union

import torch

from torchamp import ops

#: Columns of a row of hyperparameters.
_COLUMNS = 12

Number = Union[float, torch.Tensor]  # of one element


def fused_step(
    algorithm: ops.StepAlgorithm,
    grads: list[torch.Tensor],
    params: list[torch.Tensor],
    states: Sequence[list[torch.Tensor]],
    hyper: Sequence[Number],
    step: Number = 1,
    **norms: Any,
) -> None:
    """Steps `params` by `grads` for the `step`-th time.

    states: the lists of the algorithm's states. hyper: its hyperparameters; a tensor may have one
    element per parameter. norms: param_norms, update_norms, float32 of the lists' length.
    """
    device = params[0].device
    count = torch.as_tensor(step, dtype=torch.float32, device=device).reshape(()).sub(1)
    table = _table(hyper, device)
    rows = torch.arange(len(params), dtype=torch.int32)
    ops.fused_step(
        algorithm,
        grads,
        params,
        list(itertools.chain.from_iterable(states)),
        count.expand(len(params)).contiguous(),
        table,
        rows.clamp(max=len(table) - 1),
        **norms,
    )


def _table(hyper: Sequence[Number], device: torch.device) -> torch.Tensor:
    """One row, or one per tensor if a column has so many elements; on CPU if all are numbers."""
    if not any(isinstance(value, torch.Tensor) for value in hyper):
        device = torch.device("cpu")
    columns = [torch.as_tensor(value, dtype=torch.float64, device=device) for value in hyper]
    columns += [columns[0].new_zeros(())] * (_COLUMNS - len(columns))
    columns = [column.reshape(-1) for column in columns]
    return torch.stack(torch.broadcast_tensors(*columns), 1)

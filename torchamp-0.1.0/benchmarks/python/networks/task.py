"""A network with random data, for the training benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Batch:
    """The network's inputs, and a target for each of the logits that it returns."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """A network and a batch of random data. Both are made on the default device.

    items: the size of a batch, in `unit`s.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    items: int
    unit: str


def loss_of(network: nn.Module, batch: Batch) -> Tensor:
    """The sum of the cross entropies of all outputs."""
    outputs = network(*batch.inputs)
    logits = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [
        nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
        for output, target in zip(logits, batch.targets)
    ]
    return torch.stack(losses).sum()

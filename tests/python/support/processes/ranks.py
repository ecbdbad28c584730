"""Runs functions on two gloo ranks, which import apex through the alias like the tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import distributed

import torchamp
from processes import gloo

torchamp.install_as_apex()


def _seeded(scenario: Callable[[int], None]) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    scenario(rank)


def run_on_two_ranks(*scenarios: Callable[[int], None]) -> None:
    """Calls each function with the rank, on both ranks. Asserts that none raises."""
    cases = {each.__name__: functools.partial(_seeded, each) for each in scenarios}
    raised = "".join(gloo.run(2, cases).values())
    assert not raised, raised


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each rank."""
    every = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, tensor.detach().contiguous())
    return every

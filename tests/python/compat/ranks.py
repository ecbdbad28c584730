"""Runs functions on two gloo ranks, which import apex through the alias like the tests."""

from __future__ import annotations

import gc
import os
import pathlib
from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch import distributed

import torchamp

torchamp.install_as_apex()


def _worker(rank: int, file: str, scenarios: list[Callable[[int], None]]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        for scenario in scenarios:
            torch.manual_seed(rank)
            scenario(rank)
            distributed.barrier()
    finally:
        gc.collect()  # reference cycles of DDP keep the group, whose threads must end before exit
        distributed.destroy_process_group()


def run_on_two_ranks(tmp_path: pathlib.Path, *scenarios: Callable[[int], None]) -> None:
    """Calls each function with the rank, on both ranks; reraises their exceptions."""
    mp.start_processes(_worker, (f"{tmp_path}/store", scenarios), nprocs=2, start_method="spawn")


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each rank."""
    every = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, tensor.detach().contiguous())
    return every


def assert_same_on_both(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        a, b = gathered(tensor)
        assert torch.equal(a, b)

"""Runs functions on several gloo ranks, and says where one stands still."""

from __future__ import annotations

import faulthandler
import functools
import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed

#: Without progress for so many seconds a rank prints its stack and exits. Busy machines take long.
PATIENCE = 120

#: What ranks import. They are forked by a server that has imported it, and started no thread.
IMPORTS = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torchamp",
]

Cases = Mapping[str, Callable[[], None]]


def run(world_size: int, cases: Cases) -> dict[str, str]:
    """Each case on every rank, one after the other: what it raised, on each rank; "" for none.
    A case that hangs is named, and those after it do not run. What ranks print comes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        mp.set_forkserver_preload(IMPORTS)
        context = mp.start_processes(
            _work,
            (world_size, folder, cases),
            nprocs=world_size,
            start_method="forkserver",
            join=False,
        )
        for process in context.processes:
            process.join()
        for rank in range(world_size):
            sys.stderr.write(_text(Path(folder, f"{rank}.txt")))
        reports = [_read(Path(folder, f"{rank}.jsonl")) for rank in range(world_size)]
    return {
        name: "".join(
            report.get(name, f"rank {rank} did not end\n") for rank, report in enumerate(reports)
        )
        for name in cases
    }


def tests_on(world_size: int, cases: Cases) -> Callable[[str], None]:
    """A test of each case; all run at the first of them."""

    @functools.cache
    def outcomes() -> dict[str, str]:
        return run(world_size, cases)

    @pytest.mark.parametrize("case", cases)
    def test(case: str) -> None:
        assert not outcomes()[case], outcomes()[case]

    return test


def _read(file: Path) -> dict[str, str]:
    return dict(map(json.loads, _text(file).splitlines()))


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _work(rank: int, world_size: int, folder: str, cases: Cases) -> None:
    with open(f"{folder}/{rank}.txt", "w") as output:  # the server's is that of the first test
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    be_patient(world_size * PATIENCE)  # the others import torch, too
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    gc.freeze()  # torch's million objects need not be looked through after each case
    with open(f"{folder}/{rank}.jsonl", "w") as report:
        for name, case in cases.items():
            be_patient()
            report.write(json.dumps([name, _outcome(case)]) + "\n")
            report.flush()
            gc.collect()  # models in cycles keep O1's casts
    be_patient()
    gc.collect()  # reference cycles of DDP keep the group, whose threads must end before exit
    distributed.destroy_process_group()


def be_patient(seconds: int = PATIENCE) -> None:
    """Starts the time without progress again."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def _outcome(case: Callable[[], None]) -> str:
    try:
        case()
    except Exception:
        return f"rank {distributed.get_rank()}:\n{traceback.format_exc()}"
    return ""


def are_same(tensors: list[torch.Tensor]) -> bool:
    """Whether all ranks have the same bits."""
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    every = [torch.empty_like(flat) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, flat)
    return all(torch.equal(flat, other) for other in every)

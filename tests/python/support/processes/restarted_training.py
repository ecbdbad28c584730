"""restarted_training.py <folder> [<step>]: trains on the ranks of torchrun, which starts them again
after the second one has killed itself in that step.

Each start goes on from the last checkpoint in the folder. Every rank leaves its masters there.
"""

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import torch
from nets import linear_net, loss_of, overflow_at
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from processes import gloo
from torchamp import amp
from torchamp.optimizers import FusedAdamW

STEPS, MICRO_BATCHES = 6, 2
#: The step in which the first rank overflows.
OVERFLOW = 1


def last_step(folder: Path) -> int:
    return max((int(file.stem) for file in folder.glob("*.amp")), default=0)


def backwards(parallel, model, optimizer, step: int) -> None:
    rank = distributed.get_rank()
    for micro in range(MICRO_BATCHES):
        is_last = micro == MICRO_BATCHES - 1
        overflows = (step, rank, is_last) == (OVERFLOW, 0, False)
        with (
            contextlib.nullcontext() if is_last else parallel.no_sync(),
            overflow_at(model[0].bias) if overflows else contextlib.nullcontext(),
        ):
            loss = loss_of(parallel, 100 * step + 10 * rank + micro)
            amp.scale_loss(loss, optimizer).backward()


def train(folder: Path, killed_in: int) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    model = linear_net()
    optimizer = FusedAdamW(model.parameters(), lr=0.01)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    first = last_step(folder)
    if first > 0:
        amp.load(model, optimizer, folder / f"{first}.amp")
    parallel = DistributedDataParallel(model)
    for step in range(first, STEPS):
        gloo.be_patient()
        optimizer.zero_grad()
        backwards(parallel, model, optimizer, step)
        is_first_start = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if (step, rank) == (killed_in, 1) and is_first_start:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if rank == 0:
            amp.save(model, optimizer, folder / f"{step + 1}.amp")
    masters = [master.detach().clone() for master in amp.master_params(optimizer)]
    torch.save((first, masters), folder / f"rank{rank}.pt")


def join_ranks() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store, rank, world_size = next(distributed.rendezvous("env://"))
    start = distributed.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # no old keys
    distributed.init_process_group("gloo", store=start, rank=rank, world_size=world_size)


if __name__ == "__main__":
    torch.set_num_threads(1)
    join_ranks()
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1)
    distributed.barrier()
    gc.collect()  # reference cycles of DDP keep the group, whose threads must end before exit
    distributed.destroy_process_group()

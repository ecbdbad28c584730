"""What ranks send and keep in a training step: counted, beside the formulas of docs/planning.md.

    python benchmarks/python/traffic.py --ranks 2 4 8 --markdown traffic.md

Runs on the CPU with gloo. Collectives are counted where torch dispatches them; the bytes are those
that a rank sends in a ring. Nothing is timed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from markdown import table
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from torchamp import amp
from torchamp.optimizers import FusedAdamW

WIDTH, LAYERS = 512, 3

#: Of a collective by torch's name, how often a ring sends the bytes of its largest tensor,
#: in units of (n - 1) / n.
SENT = {
    "allreduce_": 2,
    "_allgather_base_": 1,
    "_reduce_scatter_base_": 1,
}


class CountedCollectives(TorchDispatchMode):
    """Counts the collectives that are dispatched while it is on."""

    def __init__(self) -> None:
        super().__init__()
        #: The bytes of each call's largest tensor, by collective.
        self.calls: dict[str, list[int]] = collections.defaultdict(list)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function.namespace == "c10d":
            tensors = [each for each in torch.utils._pytree.tree_leaves(args) if is_tensor(each)]
            size = max((each.nbytes for each in tensors), default=0)
            self.calls[function._schema.name.split("::")[1]].append(size)
        return function(*args, **(kwargs or {}))

    def sent(self, ranks: int) -> float:
        """Bytes by this rank."""
        return sum(
            SENT[name] * size * (ranks - 1) / ranks
            for name, sizes in self.calls.items()
            for size in sizes
        )


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@dataclasses.dataclass(frozen=True)
class Counted:
    """Of one rank, a parameter: the bytes that a step sends, and those of masters and moments."""

    sent: float
    kept: float
    #: How many collectives of 4 bytes.
    agreements: int


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def initialized(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = FusedAdamW(model.parameters(), lr=1e-3)
    return amp.initialize(model, optimizer, opt_level="O2", verbosity=0)


def data_parallel() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = initialized(layers())
    return DistributedDataParallel(model), optimizer


def fully_sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = layers()
    for layer in model:
        fully_shard(layer, mp_policy=amp.fsdp_policy("O2"))
    fully_shard(model, mp_policy=amp.fsdp_policy("O2"))
    return initialized(model)


#: By name: how to make it, and by the number of ranks the bytes that a parameter costs a step, and
#: its masters and moments.
WAYS: dict[str, tuple[Callable, Callable[[int], float], Callable[[int], float]]] = {
    "DistributedDataParallel": (data_parallel, lambda n: 4 * (n - 1) / n, lambda n: 12),
    "fully_shard": (fully_sharded, lambda n: 8 * (n - 1) / n, lambda n: 12 / n),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss = model(torch.randn(4, WIDTH)).float().square().mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def kept_by(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of masters and moments of this rank."""
    kept = list(map(local, amp.master_params(optimizer)))
    for state in optimizer.state.values():
        kept += [local(state[name]) for name in ("exp_avg", "exp_avg_sq")]
    return sum(tensor.nbytes for tensor in kept)


def count(make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]) -> Counted:
    model, optimizer = make()
    for _ in range(2):  # the first ones also share the start
        step(model, optimizer)
    with CountedCollectives() as collectives:
        step(model, optimizer)
    params = LAYERS * WIDTH**2
    sent = collectives.sent(distributed.get_world_size())
    agreements = collectives.calls["allreduce_"].count(4)
    return Counted(sent / params, kept_by(optimizer) / params, agreements)


def _work(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    counted = {name: count(make) for name, (make, _, _) in WAYS.items()}
    if rank == 0:
        torch.save({name: dataclasses.astuple(each) for name, each in counted.items()},
                   f"{folder}/counted")  # fmt: skip
    distributed.barrier()
    distributed.destroy_process_group()


def counted_on(ranks: int) -> dict[str, Counted]:
    """By way, as counted on the first of so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_work, (ranks, folder), nprocs=ranks, start_method="spawn")
        saved = torch.load(f"{folder}/counted")
    return {name: Counted(*values) for name, values in saved.items()}


def rows_of(ranks: int) -> list[list[str]]:
    rows = []
    for name, counted in counted_on(ranks).items():
        _, sent, kept = WAYS[name]
        rows.append(
            [
                str(ranks),
                name,
                f"{counted.sent:.3f} / {sent(ranks):.3f}",
                f"{counted.kept:.3f} / {kept(ranks):.3f}",
                str(counted.agreements),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--markdown", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    header = ["ranks", "way", "sent, counted / formula", "kept, counted / formula", "4-byte calls"]
    text = table(header, [row for n in arguments.ranks for row in rows_of(n)], text_columns=2)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()

"""What the experiments share: command lines, clocks, memory, tables and captions."""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import gc
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from digits import choose_device
from torch import Tensor, nn

from torchamp import amp

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 2**20
TF32 = "TF32"


def parse_command_line(
    parser: argparse.ArgumentParser, name: str, presets: Mapping[str, Mapping[str, Any]]
) -> argparse.Namespace:
    """Adds the options that every experiment has. Options that are not given have the values of the
    preset. ``device`` becomes a torch.device, and the folder ``out``, by default out/name, is made.
    Work on a CPU has one thread unless told otherwise: with more, other programs change the times.
    """
    parser.add_argument("--preset", default="small", choices=list(presets))
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out" / name, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU")
    parser.set_defaults(**presets[parser.parse_args().preset])
    arguments = parser.parse_args()
    arguments.device = choose_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def chosen_arms(
    given: Sequence[str] | None, names: Sequence[str], device: torch.device
) -> list[str]:
    """The arms that were asked for, else ``names`` with TF32 after the first, float32, where the
    device has it. Ends the program if TF32 is asked for where it does not exist."""
    if given is None:
        return [names[0], *[TF32] * has_tf32(device), *names[1:]]
    if TF32 in given and not has_tf32(device):
        sys.exit(f"expected a GPU of compute capability 8.0 or newer for TF32, got {device}")
    return list(given)


def has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@contextlib.contextmanager
def products_of(arm: str) -> Iterator[None]:
    """Where an arm is trained: float32 matrix products and convolutions on a GPU round their inputs
    to TF32 for the arm of that name, and for no other."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if arm == TF32 else "highest")
    torch.backends.cudnn.allow_tf32 = arm == TF32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def seconds_now(device: torch.device) -> float:
    """A clock that first waits for the device to finish its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def start_memory(device: torch.device) -> int:
    """Forgets the peak of the GPU's memory. Returns the bytes in use; 0 on a CPU."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def counted_bytes(
    model: nn.Module, optimizer: torch.optim.Optimizer, forward: Callable[[], Any]
) -> dict[str, int]:
    """The bytes of training, after a step, by what they hold. ``forward`` calls the model. Call
    this in the thread that does: in torch.autocast if that is where."""
    params = list(model.parameters())
    weights = bytes_of([*params, *model.buffers()])
    grads = bytes_of(param.grad for param in params if param.grad is not None)
    masters = bytes_of(amp.master_params(optimizer)).items() - weights.items()
    states = [value for state in optimizer.state.values() for value in state.values()]
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved.update(bytes_of([tensor]))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return {
        "weights": sum(weights.values()),
        "grads": sum(grads.values()),
        "masters": sum(size for _, size in masters),
        "state": sum(bytes_of(filter(torch.is_tensor, states)).values()),
        "activations": sum(size for _, size in saved.items() - weights.items()),
    }


def bytes_of(tensors: Iterable[Tensor]) -> dict[int, int]:
    """The bytes of each memory that the tensors are in, by address."""
    memories = (tensor.untyped_storage() for tensor in tensors)
    return {memory.data_ptr(): memory.nbytes() for memory in memories}


class Memory(NamedTuple):
    """used_mib: allocated at a GPU's peak, counted on a CPU. counted: bytes, by what they hold."""

    used_mib: float
    counted: dict[str, int]


def measure_memory(
    device: torch.device,
    start: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
) -> Memory:
    """The memory of training on batches like ``batch``, since start_memory returned ``start``."""
    peak = torch.cuda.max_memory_allocated(device) - start if device.type == "cuda" else 0
    batch = batch.clone()  # autograd would keep all data that it is a part of
    counted = counted_bytes(model, optimizer, lambda: model(batch))
    return Memory((peak or sum(counted.values())) / MIB, counted)


def memory_label(device: torch.device) -> str:
    """What Memory.used_mib is, for an axis of a figure."""
    if device.type == "cuda":
        return "MiB allocated at the peak"
    return "MiB of weights, grads, masters, state and activations"


def device_name(device: torch.device) -> str:
    """The name of the card, or of the CPU and the number of threads that torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def caption(device: torch.device) -> str:
    """One line: device, torch, date."""
    kind = {"cpu": "CPU", "cuda": "GPU"}[device.type]
    versions = f"torch {torch.__version__} · {datetime.date.today()}"
    return f"{kind}: {device_name(device)} · {versions}"


def write_csv(rows: Sequence[NamedTuple], path: Path) -> None:
    """One line per row, after a line with the names of its fields."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0]._fields)
        writer.writerows(rows)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, aligned so that it can be read as text. Numbers are on the right."""
    cells = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in cells
    ]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def finish(title: str, parts: Sequence[str], problems: Sequence[str], out: Path) -> int:
    """Prints the parts of the summary, and the problems to stderr, and writes both to summary.md.
    Returns the exit status: 1 if there are problems."""
    print("\n" + "\n\n".join(parts))
    print(f"\nsummary.md, tables and figures are in {out}")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    (out / "summary.md").write_text(
        "\n\n".join([f"# {title}", *parts, *problems]) + "\n", encoding="utf-8"
    )
    return 1 if problems else 0

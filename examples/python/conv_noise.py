"""Convolutions on random images: time and memory of the opt levels, relative to float32.

    python conv_noise.py --levels O0 O1 O2 O4 O5 --preset original

Nothing can be learned from random labels, so only time and memory matter, as long as all levels
have the same losses. Writes conv_noise.csv, conv_noise.png and summary.md. Exits with status 1 if
the losses of a level differ from float32's by more than 2 % after one epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import figures
import torch
from lab import (
    MIB,
    TF32,
    Memory,
    caption,
    chosen_arms,
    finish,
    markdown_table,
    measure_memory,
    memory_label,
    parse_command_line,
    products_of,
    seconds_now,
    start_memory,
    write_csv,
)
from torch import Tensor, nn
from tqdm import tqdm

from torchamp import amp

PRESETS = {
    "small": {"images": 64, "size": 64, "channels": 16, "batch": 16, "epochs": 5},
    "original": {"images": 800, "size": 256, "channels": 128, "batch": 50, "epochs": 10},
}
LEVELS = ["O0", "O1", "O2", "O4", "O5"]
LEARNING_RATE = 1e-3
LOSS_TOLERANCE = 0.02  # of float32's loss, after one epoch
# Mixed precision pays below these, relative to float32: (memory, time).
LIMITS = {"cuda": (0.6, 0.7), "cpu": (1.0, 1.0)}


class Net(nn.Module):
    """Three convolutions and a linear layer. The sigmoid is part of the loss: under float16 the
    binary cross entropy of a sigmoid overflows."""

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1)
        self.fc = nn.Linear(channels * (size // 2) ** 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, size, size] → logits [n]"""
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        x = torch.relu(self.conv3(x))
        return self.fc(x.flatten(1)).squeeze(1)


class Epoch(NamedTuple):
    """A line of conv_noise.csv. loss: the mean over the epoch's batches."""

    level: str
    epoch: int
    loss: float
    seconds: float
    skipped_steps: int


class Run(NamedTuple):
    """All epochs of a level, and the memory of its training."""

    level: str
    epochs: list[Epoch]
    memory: Memory

    @property
    def seconds(self) -> list[float]:
        return [epoch.seconds for epoch in self.epochs]

    @property
    def typical_seconds(self) -> float:
        """The median over the epochs: the first is slower where kernels are compiled."""
        return statistics.median(self.seconds)


def random_data(arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Images [n, 3, size, size] in 0 … 1, and labels [n], 0 or 1."""
    torch.manual_seed(arguments.seed)
    images = torch.rand(arguments.images, 3, arguments.size, arguments.size)
    labels = torch.randint(2, (arguments.images,)).float()
    return images.to(arguments.device), labels.to(arguments.device)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> Tensor:
    """One step on one batch. Returns its loss."""
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(images), labels)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    return loss.detach()


def prepared(
    level: str, arguments: argparse.Namespace
) -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]:
    """A model, its optimizer and all batches: the same at every level."""
    images, labels = random_data(arguments)
    model = Net(arguments.size, arguments.channels).to(arguments.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level="O0" if level == TF32 else level, verbosity=0
    )
    return model, optimizer, list(zip(images.split(arguments.batch), labels.split(arguments.batch)))


def memory_of(level: str, arguments: argparse.Namespace) -> Memory:
    """The memory of training at a level alone."""
    start = start_memory(arguments.device)
    model, optimizer, batches = prepared(level, arguments)
    train_step(model, optimizer, *batches[0])
    memory = measure_memory(arguments.device, start, model, optimizer, batches[0][0])
    amp.release(model)
    return memory


def train(level: str, arguments: argparse.Namespace) -> Iterator[Epoch]:
    """Trains an epoch, and prints a line of it, each time that the next is asked for."""
    model, optimizer, batches = prepared(level, arguments)
    for index in range(1, arguments.epochs + 1):
        begin, skipped = seconds_now(arguments.device), amp.telemetry(optimizer).skipped_steps
        with products_of(level):
            losses = [
                train_step(model, optimizer, *batch)
                for batch in tqdm(batches, leave=False, disable=None)
            ]
        seconds = seconds_now(arguments.device) - begin
        loss = torch.stack(losses).double().mean().item()
        print(f"{level}  epoch {index}/{arguments.epochs}  {seconds:.2f} s  loss {loss:.4f}")
        skipped = amp.telemetry(optimizer).skipped_steps - skipped
        yield Epoch(level, index, loss, seconds, skipped)


def train_in_turn(levels: Sequence[str], arguments: argparse.Namespace) -> list[Run]:
    """An epoch of one level after that of another, so that a slowdown of the machine meets all.
    Each has a thread of its own, since O1 and O4 cast in the thread of their initialize."""
    memories = [memory_of(level, arguments) for level in levels]
    arms = [train(level, arguments) for level in levels]
    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(max_workers=1)) for _ in levels]
        rounds = [
            [thread.submit(next, arm).result() for thread, arm in zip(threads, arms)]
            for _ in range(arguments.epochs)
        ]
    return [Run(*each) for each in zip(levels, map(list, zip(*rounds)), memories)]


def disagreements(runs: Sequence[Run]) -> list[str]:
    """A sentence for each level whose loss after one epoch differs from the first run's."""
    expected = runs[0].epochs[0].loss
    return [
        f"{run.level}: expected a loss within {LOSS_TOLERANCE:.0%} of {runs[0].level}'s "
        f"{expected:.4f} after one epoch, got {run.epochs[0].loss:.4f}"
        for run in runs[1:]
        if not abs(run.epochs[0].loss - expected) <= LOSS_TOLERANCE * expected
    ]


def reason(device: torch.device, level: str) -> str:
    """Why 16 bits may gain little on this device."""
    if device.type == "cpu":
        if level in ("O1", "O2"):
            return "torch has no fast backward of float16 convolutions for CPUs"
        return "bfloat16 gains only with avx512_bf16 or AMX, where products outweigh casts"
    if torch.cuda.get_device_capability(device) < (7, 0):
        return "this GPU has no tensor cores"
    return "layers of this size do not fill this GPU"


def verdict(run: Run, base: Run, device: torch.device) -> str:
    """Whether mixed precision pays here, in a sentence. A GPU must gain what tensor cores allow; a
    CPU must gain anything."""
    memory_limit, time_limit = LIMITS[device.type]
    time = run.typical_seconds / base.typical_seconds
    memory = run.memory.used_mib / base.memory.used_mib
    text = f"{run.level} takes {memory:.2f} × the memory and {time:.2f} × the time of float32. "
    if time > time_limit:
        return text + f"Mixed precision does not pay here: {reason(device, run.level)}."
    if memory > memory_limit:
        return text + "It saves time but little memory: activations are not most of it."
    return text + "Mixed precision pays here."


def table(runs: Sequence[Run]) -> str:
    """Time, memory and loss of each level, the first two also relative to the first run's."""
    header = ["level", "total s", "s an epoch", "× float32", "MiB", "× float32"]
    header += ["first loss", "last loss", "skipped steps"]
    rows = []
    for run in runs:
        time = run.typical_seconds / runs[0].typical_seconds
        memory = run.memory.used_mib / runs[0].memory.used_mib
        first, last = run.epochs[0].loss, run.epochs[-1].loss
        skipped = sum(epoch.skipped_steps for epoch in run.epochs)
        cells = [figures.level_name(run.level), f"{sum(run.seconds):.2f}"]
        cells += [f"{run.typical_seconds:.3f}", f"{time:.2f}"]
        cells += [f"{run.memory.used_mib:.2f}", f"{memory:.2f}"]
        rows.append([*cells, f"{first:.4f}", f"{last:.4f}", f"{skipped}"])
    return markdown_table(header, rows)


def bytes_table(runs: Sequence[Run]) -> str:
    """What the memory of each level holds."""
    sizes = [[f"{size / MIB:.2f}" for size in run.memory.counted.values()] for run in runs]
    rows = [[run.level, *each] for run, each in zip(runs, sizes)]
    return markdown_table(["MiB", *runs[0].memory.counted], rows)


def draw(runs: Sequence[Run], arguments: argparse.Namespace) -> None:
    """Two bars per level: seconds per epoch, with a dot for each epoch, and memory."""
    base, on_cpu = runs[0], arguments.device.type == "cpu"
    figure, axes = figures.new_figure(1, 2, (11, 0.5 * len(runs) + 2))
    time_axes, memory_axes = axes[0]
    colors = [figures.COLORS[run.level] for run in runs]

    figures.draw_bars(time_axes, [run.seconds for run in runs], colors, base.typical_seconds)
    figures.mark_float32(time_axes, base.typical_seconds)
    ratios = [run.typical_seconds / base.typical_seconds for run in runs]
    figures.label_rows(
        time_axes, [f"{run.typical_seconds:.3g} s, × {r:.2f}" for run, r in zip(runs, ratios)]
    )
    time_axes.set_yticklabels([figures.level_name(run.level) for run in runs])
    time_axes.set_xscale("log")
    figures.set_log_ticks(time_axes.xaxis)
    time_axes.set_xlabel("seconds per epoch" + (", on a CPU" if on_cpu else "") + " (log scale)")

    figures.draw_bars(memory_axes, [[run.memory.used_mib] for run in runs], colors)
    figures.mark_float32(memory_axes, base.memory.used_mib)
    ratios = [run.memory.used_mib / base.memory.used_mib for run in runs]
    figures.label_rows(
        memory_axes, [f"{run.memory.used_mib:.3g} MiB, × {r:.2f}" for run, r in zip(runs, ratios)]
    )
    memory_axes.set_xlabel(memory_label(arguments.device))

    size = f"{arguments.size} × {arguments.size}"
    title = f"Convolutions on {arguments.images} random images of {size} pixels"
    figures.save(figure, title, caption(arguments.device), arguments.out / "conv_noise.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", choices=[*LEVELS, TF32])
    for name in PRESETS["small"]:
        parser.add_argument(f"--{name}", type=int)
    arguments = parse_command_line(parser, "conv_noise", PRESETS)

    runs = train_in_turn(chosen_arms(arguments.levels, LEVELS, arguments.device), arguments)
    write_csv([epoch for run in runs for epoch in run.epochs], arguments.out / "conv_noise.csv")
    draw(runs, arguments)
    verdicts = [verdict(run, runs[0], arguments.device) for run in runs[1:]]
    parts = [caption(arguments.device), table(runs), bytes_table(runs), "\n".join(verdicts)]
    return finish("Convolutions on random images", parts, disagreements(runs), arguments.out)


if __name__ == "__main__":
    sys.exit(main())

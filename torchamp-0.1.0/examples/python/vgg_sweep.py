"""VGG16 at several batch sizes: time, memory and accuracy of float32, float16 and mixed precision.

    python vgg_sweep.py --levels O0 O3 O1 O2 O5 --batch 32 64 128 --data cifar10 DIR

Writes runs.csv, time.png, memory.png, accuracy.png and summary.md. Exits with status 1 if a level's
first loss, of the same weights and images, differs from float32's by more than 2 %, or, from 10
epochs on, a level's best test accuracy by more than 1 point. In fewer epochs differences of
rounding decide how far a network this deep has come.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import figures
import torch
from arms import Arm, amp_arm, train_step
from digits import Digits, accuracy
from lab import (
    TF32,
    caption,
    chosen_arms,
    finish,
    markdown_table,
    measure_memory,
    parse_command_line,
    products_of,
    seconds_now,
    start_memory,
    write_csv,
)
from tqdm import tqdm
from vgg import Vgg16, load_images
from vgg_figures import ENOUGH_EPOCHS, METHODS, Row, best_accuracies, by_size, draw

from torchamp import amp

PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "width": Fraction(1, 16),
        "images": 128,
        "data": ["digits"],
        "batch": [32, 64, 128],
        "epochs": 3,
        "repeats": 1,
    },
    "original": {
        "width": Fraction(1),
        "images": 50_000,
        "data": ["synthetic"],
        "batch": [128, 256, 512, 1024, 2048],
        "epochs": 20,
        "repeats": 3,
    },
}
LEVELS = ["O0", "O3", "O1", "O2", "O5"]
LEARNING_RATE = 0.02
MOMENTUM = 0.9
LOSS_TOLERANCE = 0.02  # of float32's first loss
ACCURACY_TOLERANCE = 0.01


class Epoch(NamedTuple):
    """What train_epoch measures."""

    seconds: float
    losses: list[float]
    skipped_steps: int


def train_epoch(arm: Arm, images: Digits, batch: int, device: torch.device) -> Epoch:
    """One pass over the images in a new random order. The last batch is left out if it is small."""
    arm.model.train()
    rows = torch.randperm(len(images.labels)).split(batch)
    begin = seconds_now(device)
    steps = [train_step(arm, images.take(each)) for each in rows if len(each) == batch]
    seconds = seconds_now(device) - begin
    losses, skipped = zip(*steps)
    return Epoch(seconds, list(losses), sum(skipped))


def train(
    level: str, batch: int, repeat: int, data: tuple[Digits, Digits], arguments: argparse.Namespace
) -> list[Row]:
    """The epochs of a run; the repeat's number gives the seed, for weights and batches."""
    device, images = arguments.device, data[0]
    torch.manual_seed(arguments.seed + repeat)
    start = start_memory(device)
    model = Vgg16(float(arguments.width)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    arm = amp_arm(model, optimizer, "O0" if level == TF32 else level)
    epochs, accuracies = [], []
    for _ in range(arguments.epochs):
        epochs.append(train_epoch(arm, images, batch, device))
        accuracies.append([accuracy_in_parts(arm, each, batch) for each in data])
    arm.model.train()
    memory = measure_memory(device, start, arm.model, arm.optimizer, images.images[:batch])
    amp.release(arm.model)
    return [
        Row(
            METHODS[level],
            level,
            batch,
            repeat,
            index,
            epoch.seconds,
            len(epoch.losses) * batch / epoch.seconds,
            memory.used_mib,
            epochs[0].losses[0],
            statistics.fmean(epoch.losses),
            *each,
            epoch.skipped_steps,
        )
        for index, (epoch, each) in enumerate(zip(epochs, accuracies), 1)
    ]


def accuracy_in_parts(arm: Arm, images: Digits, batch: int) -> float:
    """The fraction of correct classes, a batch at a time."""
    parts = torch.arange(len(images.labels)).split(batch)
    correct = sum(accuracy(arm.model, images.take(rows)) * len(rows) for rows in parts)
    return correct / len(images.labels)


def problems(rows: Sequence[Row]) -> list[str]:
    """A sentence for each first loss and each accuracy that differs from the first level's."""
    return loss_problems(rows) + accuracy_problems(rows)


def loss_problems(rows: Sequence[Row]) -> list[str]:
    firsts = [row for row in rows if row.epoch == 1]
    base = {(row.batch, row.repeat): row for row in firsts if row.level == rows[0].level}
    found = []
    for row in firsts:
        expected = base[row.batch, row.repeat].first_loss
        if not abs(row.first_loss - expected) <= LOSS_TOLERANCE * expected:
            found.append(
                f"{row.level}, batch {row.batch}: expected a first loss within "
                f"{LOSS_TOLERANCE:.0%} of {rows[0].level}'s {expected:.4f}, "
                f"got {row.first_loss:.4f}"
            )
    return found


def accuracy_problems(rows: Sequence[Row]) -> list[str]:
    if max(row.epoch for row in rows) < ENOUGH_EPOCHS:
        return []
    found = []
    for (level, batch), runs in by_size(rows).items():
        expected, got = (
            mean_accuracy(each) for each in (by_size(rows)[rows[0].level, batch], runs)
        )
        if not abs(got - expected) <= ACCURACY_TOLERANCE:
            found.append(
                f"{level}, batch {batch}: expected a test accuracy within {ACCURACY_TOLERANCE} of "
                f"{rows[0].level}'s {expected:.4f}, got {got:.4f}"
            )
    return found


def mean_accuracy(rows: Sequence[Row]) -> float:
    return statistics.fmean(best_accuracies(rows))


def table(rows: Sequence[Row]) -> str:
    """A line for each level and batch; time and memory also relative to the first level's."""
    header = ["level", "batch", "s an epoch", "× float32", "images/s", "MiB", "× float32"]
    header += ["first loss", "best test accuracy", "skipped steps a run"]
    lines = []
    base: dict[int, tuple[float, float]] = {}
    for (level, batch), runs in by_size(rows).items():
        seconds = statistics.median(row.seconds for row in runs)
        speed = statistics.median(row.images_per_second for row in runs)
        memory, loss = runs[0].peak_mib, runs[0].first_loss
        base_seconds, base_memory = base.setdefault(batch, (seconds, memory))
        skipped = sum(row.skipped_steps for row in runs) / len(best_accuracies(runs))
        lines.append([figures.level_name(level), f"{batch}", f"{seconds:.3f}"])
        lines[-1] += [f"{seconds / base_seconds:.2f}", f"{speed:.0f}", f"{memory:.2f}"]
        lines[-1] += [f"{memory / base_memory:.2f}", f"{loss:.4f}"]
        lines[-1] += [f"{mean_accuracy(runs):.3f}", f"{skipped:.1f}"]
    return markdown_table(header, lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", choices=list(METHODS))
    parser.add_argument("--batch", nargs="+", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--width", type=Fraction, help="of the network: 1, or 1/8")
    parser.add_argument("--images", type=int, help="of the training set, at most")
    parser.add_argument("--data", nargs="+", help="digits, synthetic, or cifar10 DIR")
    arguments = parse_command_line(parser, "vgg_sweep", PRESETS)
    arguments.levels = chosen_arms(arguments.levels, LEVELS, arguments.device)
    return arguments


def main() -> int:
    arguments = parse()
    torch.manual_seed(arguments.seed)
    data = load_images(arguments.data, arguments.images, arguments.device)
    count = len(data[0].labels)
    if max(arguments.batch) > count:
        sys.exit(f"--batch: expected at most the {count} images, got {max(arguments.batch)}")
    runs = [
        (level, batch, repeat)
        for repeat in range(arguments.repeats)
        for batch in arguments.batch
        for level in arguments.levels
    ]
    rows = []
    for run in tqdm(runs, leave=False, disable=None):
        with products_of(run[0]):
            rows += train(*run, data, arguments)
    rows.sort(key=lambda row: arguments.levels.index(row.level))
    write_csv(rows, arguments.out / "runs.csv")
    draw(rows, arguments)
    parts = [caption(arguments.device), table(rows)]
    return finish("VGG16 by batch size", parts, problems(rows), arguments.out)


if __name__ == "__main__":
    sys.exit(main())

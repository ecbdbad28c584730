"""apex's loop, torch.amp's loop and torchamp's opt levels on the same network, side by side.

    python compare.py --arms fp32 native apex torchamp-O1 torchamp-O2 torchamp-O5 --repeats 3

Writes compare.csv, compare.png with losses, accuracies, times and memory, rounding.png with what
16-bit formats lose, and summary.md. Exits with status 1 if the losses of torch.amp, apex's loop and
torchamp at O1 differ by more than 1e-2 in an epoch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

import figures
import torch
from arms import Arm, amp_arm, float32_arm, native_arm, train_step
from digits import (
    BATCH_SIZE,
    DIGITS_CSV,
    LEARNING_RATE,
    MOMENTUM,
    Digits,
    Net,
    accuracy,
    batches,
    load_digits,
)
from lab import (
    TF32,
    caption,
    chosen_arms,
    counted_bytes,
    finish,
    markdown_table,
    parse_command_line,
    products_of,
    seconds_now,
    write_csv,
)
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rounding import draw_rounding
from torch import Tensor
from tqdm import tqdm

import torchamp

PRESETS = {"small": {"epochs": 5, "repeats": 3}, "original": {"epochs": 30, "repeats": 5}}
ARMS = ["fp32", "native", "apex", "torchamp-O1", "torchamp-O2", "torchamp-O5"]
MORE_ARMS = ["torchamp-O3", "torchamp-O4"]
SAME = ["native", "apex", "torchamp-O1"]  # the same casts and the same loss scale
LOSS_TOLERANCE = 1e-2
TITLES = {"fp32": "float32", "native": "torch.amp", "apex": "apex (alias)"}


def make_arm(name: str, device: torch.device) -> Arm:
    """The arm of that name with a new network, from torch's seed."""
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    if name in ("fp32", TF32):
        return float32_arm(model, optimizer)
    if name == "native":
        return native_arm(model, optimizer, device)
    if name == "apex":
        torchamp.install_as_apex()
        from apex import amp  # type: ignore[import-not-found]

        return amp_arm(model, optimizer, "O1", amp)
    return amp_arm(model, optimizer, name[-2:])


class Epoch(NamedTuple):
    """A line of compare.csv. loss: the mean over the epoch's steps. Times are the median and the
    quartiles of the epoch's steps."""

    arm: str
    repeat: int
    epoch: int
    loss: float
    test_accuracy: float
    ms_per_step: float
    ms_first_quartile: float
    ms_third_quartile: float
    skipped_steps: int


class Run(NamedTuple):
    """An arm's training from one seed, with the times of all its steps."""

    arm: str
    epochs: list[Epoch]
    milliseconds: list[float]
    bytes_per_parameter: dict[str, float]


def train_epoch(arm: Arm, digits: Digits, device: torch.device) -> tuple[float, list[float], int]:
    """Returns the mean loss, the milliseconds of each step, and how many steps were skipped."""
    losses, milliseconds, skipped = [], [], 0
    arm.model.train()
    for batch in batches(digits, epochs=1):
        start = seconds_now(device)
        loss, was_skipped = train_step(arm, batch)
        milliseconds.append(1e3 * (seconds_now(device) - start))
        losses.append(loss)
        skipped += was_skipped
    return statistics.fmean(losses), milliseconds, skipped


def bytes_per_parameter(arm: Arm, images: Tensor) -> dict[str, float]:
    """Counted bytes divided by the number of parameters."""
    arm.model.train()
    with arm.casts():
        counted = counted_bytes(arm.model, arm.optimizer, lambda: arm.model(images))
    parameters = sum(p.numel() for p in arm.model.parameters())
    return {kind: size / parameters for kind, size in counted.items()}


def train(name: str, repeat: int, arguments: argparse.Namespace) -> Run:
    """Trains an arm; the repeat's number gives the seed, for weights and batches."""
    device = arguments.device
    train_digits, test_digits = load_digits(DIGITS_CSV, device)
    torch.manual_seed(arguments.seed + repeat)
    arm = make_arm(name, device)
    epochs, all_milliseconds = [], []
    title = f"{name}, repeat {repeat + 1}"
    for index in tqdm(range(1, arguments.epochs + 1), title, leave=False, disable=None):
        loss, milliseconds, skipped = train_epoch(arm, train_digits, device)
        with arm.casts():
            test_accuracy = accuracy(arm.model, test_digits)
        quartiles = statistics.quantiles(milliseconds, n=4)
        ms = quartiles[1], quartiles[0], quartiles[2]
        epochs.append(Epoch(name, repeat, index, loss, test_accuracy, *ms, skipped))
        all_milliseconds += milliseconds
    per_parameter = bytes_per_parameter(arm, train_digits.images[:BATCH_SIZE].clone())
    if name not in ("fp32", TF32, "native"):
        torchamp.amp.release(arm.model)
    return Run(name, epochs, all_milliseconds, per_parameter)


def disagreements(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run of SAME whose losses differ from those of the first such arm."""
    found = []
    same = [run for run in runs if run.arm in SAME]
    for run in same:
        base = next(each for each in same if each.epochs[0].repeat == run.epochs[0].repeat)
        for expected, got in zip(base.epochs, run.epochs):
            if not abs(got.loss - expected.loss) <= LOSS_TOLERANCE:
                found.append(
                    f"{run.arm}: expected a loss within {LOSS_TOLERANCE} of {base.arm}'s "
                    f"{expected.loss:.4f} in epoch {got.epoch}, got {got.loss:.4f}"
                )
                break
    return found


def title_of(arm: str) -> str:
    return TITLES.get(arm, arm.replace("-", " "))


def color_of(arm: str) -> str:
    """Of an arm in the figures."""
    return figures.COLORS[{"fp32": "float32"}.get(arm, arm.removeprefix("torchamp-"))]


def table(by_arm: dict[str, list[Run]]) -> str:
    """A line per arm: means over the repeats, with the range of accuracies, and the median step."""
    header = ["arm", "loss", "test accuracy", "least to most", "ms per step", "quartiles"]
    header += ["bytes per parameter", "skipped steps"]
    rows = []
    for arm, runs in by_arm.items():
        lasts = [run.epochs[-1] for run in runs]
        accuracies = [last.test_accuracy for last in lasts]
        times = statistics.quantiles([ms for run in runs for ms in run.milliseconds], n=4)
        skipped = sum(epoch.skipped_steps for run in runs for epoch in run.epochs)
        rows.append([title_of(arm), f"{statistics.fmean(last.loss for last in lasts):.4f}"])
        rows[-1] += [f"{statistics.fmean(accuracies):.4f}"]
        rows[-1] += [f"{min(accuracies):.4f} to {max(accuracies):.4f}"]
        rows[-1] += [f"{times[1]:.2f}", f"{times[0]:.2f} to {times[2]:.2f}"]
        rows[-1] += [f"{sum(runs[0].bytes_per_parameter.values()):.1f}"]
        rows[-1] += [f"{skipped / len(runs):.1f}"]
    return markdown_table(header, rows)


def draw_curves(axes: Axes, by_arm: dict[str, list[Run]], field: str, title: str) -> None:
    """The mean over the repeats at each epoch, with a bar from least to most, arms side by side."""
    for place, (arm, runs) in enumerate(by_arm.items()):
        values = torch.tensor([[getattr(epoch, field) for epoch in run.epochs] for run in runs])
        mean, least, most = values.mean(0), values.amin(0), values.amax(0)
        shift = 0.12 * (place - (len(by_arm) - 1) / 2)
        epochs = [epoch + shift for epoch in range(1, len(mean) + 1)]
        style = {"color": color_of(arm), "fmt": "o", "markersize": 5, "elinewidth": 1.5}
        spread = torch.stack([mean - least, most - mean])
        axes.errorbar(epochs, mean, spread, label=title_of(arm), **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    what = ": mean and range" if len(runs) > 1 else ""
    axes.set_title(f"{title}{what}", fontsize=10, loc="left")


def draw_times(axes: Axes, by_arm: dict[str, list[Run]], on_cpu: bool) -> None:
    """A box per arm: quartiles of all steps, whiskers to the 5th and 95th percentile."""
    times = [[ms for run in runs for ms in run.milliseconds] for runs in by_arm.values()]
    boxes = axes.boxplot(times, whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6)
    for box, median, arm in zip(boxes["boxes"], boxes["medians"], by_arm):
        box.set(facecolor=color_of(arm), edgecolor=color_of(arm))
        median.set_color("black")
    axes.axhline(statistics.median(times[0]), color=color_of(next(iter(by_arm))), linestyle="--")
    axes.set_yscale("log")
    figures.set_log_ticks(axes.yaxis)
    axes.set_ylabel("ms per step" + (", on a CPU" if on_cpu else "") + " (log scale)")
    names = [title_of(arm).replace(" ", "\n") for arm in by_arm]
    axes.set_xticks(range(1, len(by_arm) + 1), names, fontsize=9)
    title = "Time of a step: median, quartiles, 5th and 95th percentile"
    axes.set_title(title, fontsize=10, loc="left")


def draw_bytes(axes: Axes, by_arm: dict[str, list[Run]]) -> None:
    """Bytes per parameter, stacked by what they hold."""
    rows = [runs[0].bytes_per_parameter for runs in by_arm.values()]
    figures.draw_memory(axes, rows, f"bytes per parameter, counted, for a batch of {BATCH_SIZE}")
    axes.set_yticklabels([title_of(arm) for arm in by_arm])
    totals = [sum(row.values()) for row in rows]
    axes.axvline(totals[0], color=figures.FLOAT32, linestyle="--", linewidth=1)
    figures.label_rows(axes, [f"{total:.0f}, × {total / totals[0]:.2f}" for total in totals])


def draw(by_arm: dict[str, list[Run]], arguments: argparse.Namespace) -> None:
    """Losses, accuracies, times and memory."""
    figure, axes = figures.new_figure(2, 2, (14, 8.5))
    draw_curves(axes[0, 0], by_arm, "loss", "Training loss")
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_ylabel("cross entropy (log scale)")
    axes[0, 0].legend(frameon=False)
    draw_curves(axes[0, 1], by_arm, "test_accuracy", "Test accuracy")
    axes[0, 1].set_ylabel("fraction of digits")
    draw_times(axes[1, 0], by_arm, arguments.device.type == "cpu")
    draw_bytes(axes[1, 1], by_arm)
    times = "once" if arguments.repeats == 1 else f"{arguments.repeats} times"
    title = f"A small convolutional network on digits, trained {times} in {len(by_arm)} ways"
    figures.save(figure, title, caption(arguments.device), arguments.out / "compare.png")


def rounding_figure(arguments: argparse.Namespace) -> None:
    """Draws what rounding loses in this network after training in float32."""
    train_digits, _ = load_digits(DIGITS_CSV, arguments.device)
    torch.manual_seed(arguments.seed)
    arm = make_arm("fp32", arguments.device)
    for _ in range(arguments.epochs):
        train_epoch(arm, train_digits, arguments.device)
    batch = train_digits.take(torch.arange(BATCH_SIZE))
    path = arguments.out / "rounding.png"
    draw_rounding(arm.model, batch, LEARNING_RATE, caption(arguments.device), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *MORE_ARMS, TF32])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--repeats", type=int)
    arguments = parse_command_line(parser, "compare", PRESETS)

    arms = chosen_arms(arguments.arms, ARMS, arguments.device)
    by_arm: dict[str, list[Run]] = {arm: [] for arm in arms}
    for repeat in range(arguments.repeats):
        for arm in arms:
            with products_of(arm):
                by_arm[arm].append(train(arm, repeat, arguments))
    runs = [run for each in by_arm.values() for run in each]

    write_csv([epoch for run in runs for epoch in run.epochs], arguments.out / "compare.csv")
    draw(by_arm, arguments)
    rounding_figure(arguments)
    parts = [caption(arguments.device), table(by_arm)]
    return finish("apex, torch.amp and torchamp", parts, disagreements(runs), arguments.out)


if __name__ == "__main__":
    sys.exit(main())

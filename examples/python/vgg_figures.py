"""The rows and the figures of vgg_sweep: time, memory and accuracy against the batch."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import figures
from lab import caption, memory_label
from matplotlib.axes import Axes

METHODS = {
    "O0": "fp32",
    "TF32": "fp32",
    "O3": "fp16",
    "O1": "amp",
    "O2": "amp",
    "O4": "amp",
    "O5": "amp",
}
ENOUGH_EPOCHS = 10  # to compare accuracies


class Row(NamedTuple):
    """A line of runs.csv: an epoch. first_loss: of the run's first step. loss: the epoch's mean.
    peak_mib: allocated on a GPU, counted on a CPU."""

    method: str
    level: str
    batch: int
    repeat: int
    epoch: int
    seconds: float
    images_per_second: float
    peak_mib: float
    first_loss: float
    loss: float
    train_accuracy: float
    test_accuracy: float
    skipped_steps: int


def by_size(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """By level and batch."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.level, row.batch), []).append(row)
    return groups


def best_accuracies(rows: Sequence[Row]) -> list[float]:
    """Of the test images, the best of the epochs, for each repeat."""
    repeats = sorted({row.repeat for row in rows})
    return [max(row.test_accuracy for row in rows if row.repeat == each) for each in repeats]


def draw_lines(
    axes: Axes, rows: Sequence[Row], values: Callable[[Sequence[Row]], list[float]]
) -> None:
    """The median of the values against the batch, a line per level, with a band from least to
    most."""
    sizes = by_size(rows)
    batches = sorted({row.batch for row in rows})
    for level in dict.fromkeys(row.level for row in rows):
        each = [values(sizes[level, batch]) for batch in batches]
        color, dashes = figures.COLORS[level], "--" if METHODS[level] == "fp32" else "-"
        line = {"color": color, "linestyle": dashes, "marker": "o"}
        axes.plot(batches, list(map(statistics.median, each)), label=level, **line)
        axes.fill_between(
            batches, list(map(min, each)), list(map(max, each)), color=color, alpha=0.2
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{batch}" for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch (log scale)")
    handles, labels = axes.get_legend_handles_labels()
    place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles, map(figures.level_name, labels), frameon=False, fontsize=9, **place)


class Panel(NamedTuple):
    """A figure of a value against the batch. ``values``: of the epochs of a level and a batch."""

    name: str
    title: str
    unit: str
    values: Callable[[Sequence[Row]], list[float]]


def panels(arguments: argparse.Namespace) -> list[Panel]:
    on_cpu = ", on a CPU" if arguments.device.type == "cpu" else ""
    epochs = f"{arguments.epochs} epochs"
    if arguments.repeats > 1:
        epochs += f", {arguments.repeats} runs"
    few = "" if arguments.epochs >= ENOUGH_EPOCHS else ", too few to compare levels"
    return [
        Panel(
            "time",
            f"Median and range of {epochs}",
            f"ms per image{on_cpu} (log scale)",
            times,
        ),
        Panel("memory", memory_label(arguments.device), "MiB", lambda rows: [rows[0].peak_mib]),
        Panel("accuracy", f"Best of {epochs}{few}", "fraction of test images", best_accuracies),
    ]


def times(rows: Sequence[Row]) -> list[float]:
    """Milliseconds per image."""
    return [1e3 / row.images_per_second for row in rows]


def draw_panel(rows: Sequence[Row], panel: Panel, arguments: argparse.Namespace) -> None:
    figure, ((axes,),) = figures.new_figure(1, 1, (9, 4.5))
    draw_lines(axes, rows, panel.values)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_ylabel(panel.unit)
    if panel.name == "time":
        axes.set_yscale("log")
        figures.set_log_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, 1 if panel.name == "accuracy" else None)
    title = f"VGG16, width {arguments.width}, {arguments.data[0]}: {panel.name} by batch"
    path = arguments.out / f"{panel.name}.png"
    figures.save(figure, title, caption(arguments.device), path)


def draw(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    """Writes time.png, memory.png and accuracy.png."""
    for panel in panels(arguments):
        draw_panel(rows, panel, arguments)

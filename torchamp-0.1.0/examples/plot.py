"""Plots runs: one column per run, with the loss above and the loss scale below.

    python plot.py real.csv fake.csv generator.csv --out curves.png

plots the steps that the examples write with ``--out``, one column per file. The demo's figure is in
demo_figure.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from runs import Run, Step, read_steps

NUMBERS = {
    "O0": "float32",
    "O1": "float16 autocast",
    "O2": "float16, float32 masters",
    "O3": "float16",
    "O4": "bfloat16 autocast",
    "O5": "bfloat16, float32 masters",
}
STYLES = [
    {"color": "#9ecae1", "linewidth": 4.0},
    {"color": "#08306b", "linewidth": 1.0},
]
SKIPPED_COLOR = "#d62728"


def draw_loss(axes: Axes, pair: list[Run]) -> None:
    for run, style in zip(pair, STYLES):
        steps = [step.step for step in run.steps]
        axes.plot(steps, [step.loss for step in run.steps], label=run.language, **style)
    level = pair[0].level
    axes.set_yscale("log")
    axes.set_title(f"$\\bf{{{level}}}$  {NUMBERS[level]}", fontsize=10)


def mark_skipped(axes: Axes, steps: list[Step]) -> None:
    """Marks skipped steps at their loss scale, and completes the lower axes."""
    skipped = [step for step in steps if step.skipped]
    axes.plot(
        [step.step for step in skipped],
        [step.loss_scale for step in skipped],
        linestyle="none",
        marker="x",
        markersize=5,
        color=SKIPPED_COLOR,
        label="skipped step",
    )
    axes.set_yscale("log", base=2)
    axes.set_xlabel("step")


def add_legend(figure: FigureBase, loss_axes: Axes, scale_axes: Axes) -> None:
    languages, skipped = (
        loss_axes.get_legend_handles_labels(),
        scale_axes.get_legend_handles_labels(),
    )
    handles, labels = (a + b for a, b in zip(languages, skipped))
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)


def tidy(all_axes: Iterable[Axes]) -> None:
    """Gives the axes a thin grid behind what is drawn, and no frame."""
    for axes in all_axes:
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def make_axes(columns: int, width: float) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, [2, columns]."""
    figure, axes = pyplot.subplots(
        2,
        columns,
        figsize=(width, 5.5),
        sharex="col",
        sharey="row",
        squeeze=False,
        height_ratios=[3, 2],
        layout="constrained",
    )
    tidy(axes.flat)
    axes[0, 0].set_ylabel("training loss")
    axes[1, 0].set_ylabel("loss scale")
    return figure, axes


def draw_files(files: list[Path]) -> Figure:
    """One column for each CSV of steps, titled with the file name."""
    figure, axes = make_axes(len(files), width=2 + 4 * len(files))
    for (loss_axes, scale_axes), file in zip(axes.T, files):
        steps = read_steps(file)
        indices = [step.step for step in steps]
        loss_axes.plot(indices, [step.loss for step in steps], **STYLES[1])
        loss_axes.set_title(file.stem, fontsize=10)
        scale_axes.step(indices, [step.loss_scale for step in steps], where="post", **STYLES[1])
        mark_skipped(scale_axes, steps)
    add_legend(figure, axes[0, 0], axes[1, 0])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="steps.csv")
    parser.add_argument("--out", type=Path, default=Path("curves.png"))
    arguments = parser.parse_args()
    draw_files(arguments.files).savefig(arguments.out, dpi=120)


if __name__ == "__main__":
    main()

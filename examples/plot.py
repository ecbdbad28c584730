"""The runs' curves: a column a level, the loss above, the loss scale below."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import Run

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


def draw_loss_scale(axes: Axes, pair: list[Run]) -> None:
    for run, style in zip(pair, STYLES):
        steps = [step.step for step in run.steps]
        axes.step(steps, [step.loss_scale for step in run.steps], where="post", **style)
    skipped = [step for step in pair[0].steps if step.skipped]
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


def add_legend(figure: Figure, loss_axes: Axes, scale_axes: Axes) -> None:
    languages, skipped = (
        loss_axes.get_legend_handles_labels(),
        scale_axes.get_legend_handles_labels(),
    )
    handles, labels = (a + b for a, b in zip(languages, skipped))
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)


def draw(pairs: list[list[Run]], path: Path) -> None:
    """``pairs``: for each level the runs in C++ and in Python. Writes a PNG."""
    figure, axes = pyplot.subplots(
        2,
        len(pairs),
        figsize=(15, 5.5),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=[3, 2],
        layout="constrained",
    )
    for (loss_axes, scale_axes), pair in zip(axes.T, pairs):
        draw_loss(loss_axes, pair)
        draw_loss_scale(scale_axes, pair)
    for each in axes.flat:
        each.grid(color="#e6e6e6", linewidth=0.6)
        each.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("training loss")
    axes[1, 0].set_ylabel("loss scale")
    add_legend(figure, axes[0, 0], axes[1, 0])
    figure.suptitle("Handwritten digits at every opt level", x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

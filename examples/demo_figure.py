"""The demo's figure: losses by step, and accuracy, time and, on a GPU, memory by level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from plot import STYLES, add_legend, draw_loss, mark_skipped, tidy
from runs import Run
from summary import MIN_ACCURACY

BASELINE = "#636363"


def is_dynamic(run: Run) -> bool:
    return len({step.loss_scale for step in run.steps}) > 1


def draw_loss_scales(axes: Axes, pairs: list[list[Run]]) -> None:
    """The loss scales that change, in C++ and in Python."""
    dynamic = [pair for pair in pairs if is_dynamic(pair[0])]
    for pair in dynamic:
        for run, style in zip(pair, STYLES):
            scales = [step.loss_scale for step in run.steps]
            axes.step(range(len(scales)), scales, where="post", **style)
    mark_skipped(axes, [step for pair in dynamic for step in pair[0].steps])
    levels = " and ".join(pair[0].level for pair in dynamic)
    axes.set_title(f"Loss scale of {levels} (log scale)", fontsize=10, loc="left")


def draw_bars(axes: Axes, pairs: list[list[Run]], value: Callable[[Run], float]) -> None:
    """A bar for each level and language, with the number above Python's. A dashed line is at O0 in
    Python."""
    levels = np.arange(len(pairs))
    for index, style in enumerate(STYLES):
        heights = [value(pair[index]) for pair in pairs]
        axes.bar(levels + 0.4 * index - 0.2, heights, width=0.4, color=style["color"])
    for level, height in zip(levels, heights):
        axes.text(level + 0.2, height, f"{height:.3g}", ha="center", va="bottom", fontsize=8)
    axes.axhline(heights[0], color=BASELINE, linestyle="--", linewidth=1)
    axes.set_xticks(levels, [pair[0].level for pair in pairs])
    axes.grid(visible=False, axis="x")


def draw_accuracy(axes: Axes, pairs: list[list[Run]]) -> None:
    """Dots, since the axis does not start at 0, and the least accuracy that the demo accepts."""
    for index, (style, size) in enumerate(zip(STYLES, (90, 20))):
        accuracies = [pair[index].test_accuracy for pair in pairs]
        axes.scatter(range(len(pairs)), accuracies, s=size, color=style["color"], zorder=2)
    axes.margins(y=0.15)
    axes.axhline(MIN_ACCURACY, color=BASELINE, linestyle=":", linewidth=1)
    axes.set_xticks(range(len(pairs)), [pair[0].level for pair in pairs])
    axes.set_title(
        f"Test accuracy (dotted: the least accepted, {MIN_ACCURACY})", fontsize=10, loc="left"
    )


def draw(pairs: list[list[Run]], path: Path) -> None:
    """Writes a PNG. ``pairs``: for each level the runs in C++ and in Python."""
    figure = pyplot.figure(figsize=(16, 7), layout="constrained")
    above, below = figure.subfigures(2, 1)
    losses = above.subplots(1, len(pairs), sharey=True, squeeze=False)[0]
    on_gpu = pairs[0][0].device != "cpu"
    scale_axes, accuracy_axes, time_axes, *rest = below.subplots(1, 3 + on_gpu)
    tidy([*losses, scale_axes, accuracy_axes, time_axes, *rest])
    for axes, pair in zip(losses, pairs):
        draw_loss(axes, pair)
        axes.set_xlabel("step")
    losses[0].set_ylabel("training loss (log scale)")
    draw_loss_scales(scale_axes, pairs)
    draw_accuracy(accuracy_axes, pairs)
    draw_bars(time_axes, pairs, lambda run: run.ms_per_step)
    time_axes.set_title(
        f"ms per step on {pairs[0][0].device} (dashed: O0)", fontsize=10, loc="left"
    )
    for memory_axes in rest:
        draw_bars(memory_axes, pairs, lambda run: run.peak_memory_mib)
        memory_axes.set_title("MiB allocated at the peak (dashed: O0)", fontsize=10, loc="left")
    add_legend(above, losses[0], scale_axes)
    above.suptitle("Handwritten digits at every opt level", x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

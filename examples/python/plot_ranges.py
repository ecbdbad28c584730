"""Figures of what amp.preflight found: the exponents of a model's tensors against float16's, and
the grads that each loss scale loses. which_precision.py draws them, of any model by --model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import figures
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchamp import amp

LARGEST = torch.finfo(torch.float16).max
#: Exponents of the smallest number, of the smallest of full precision, and of the largest.
SUBNORMAL, NORMAL, TOP = -24, -14, 15
MAX_ROWS = 48
LOSS_SCALES = range(25)
FULL, PART, OVERFLOW = "#d8e8f5", "#eef4fa", "#c8102e"
COLORS = {
    "weight": "#009e73",
    "activation": "#0072b2",
    "activation grad": "#e69f00",
    "weight grad": "#cc79a7",
}
#: Kind, module, and how many nonzero elements its tensors of that kind have, by exponent.
Row = tuple[str, str, Counter]


def save_plots(report: amp.Preflight, folder: Path, caption: str = "") -> None:
    """Writes range.png and grads.png."""
    title = f"preflight of {report.model} on {report.device}"
    figures.save(draw_ranges(rows_of(report)), title, caption, folder / "range.png")
    figures.save(draw_grads(report), f"{title}: grads in float16", caption, folder / "grads.png")


def rows_of(report: amp.Preflight) -> list[Row]:
    """Sorted by kind; MAX_ROWS at most, those with the largest and the smallest elements."""
    found: dict[tuple[str, str], Counter] = {}
    for each in report.tensors:
        found.setdefault((each.kind, each.module), Counter()).update(each.range.exponents)
    rows = [(*key, exponents) for key, exponents in found.items() if exponents]
    rows.sort(key=lambda row: list(COLORS).index(row[0]))
    largest = sorted(range(len(rows)), key=lambda i: -max(rows[i][2]))
    smallest = sorted(range(len(rows)), key=lambda i: quantile(rows[i][2], 0.05))
    half = MAX_ROWS // 2
    return [rows[i] for i in sorted({*largest[:half], *smallest[:half]})]


def quantile(exponents: Counter, share: float) -> int:
    """The exponent at or below which this share of the elements is."""
    left = share * sum(exponents.values())
    for exponent in sorted(exponents):
        left -= exponents[exponent]
        if left <= 0:
            break
    return exponent


def draw_ranges(rows: Sequence[Row]) -> Figure:
    """A line per row, from its smallest to its largest exponent; thick from the 5th to the 95th
    percentile."""
    figure, ((axes,),) = figures.new_figure(1, 1, (9, 2 + 0.24 * len(rows)))
    draw_float16(axes, [row[2] for row in rows])
    for i, (kind, _, exponents) in enumerate(rows):
        for share, width in ((0.0, 1), (0.05, 5)):
            ends = quantile(exponents, share), quantile(exponents, 1 - share) + 1
            axes.plot(ends, [i, i], color=COLORS[kind], linewidth=width)
        if max(exponents) > TOP:
            axes.plot(max(exponents) + 1, i, marker=">", color=OVERFLOW)
    names = [f"{kind}, {module or 'the model'}" for kind, module, _ in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.set_ylim(len(rows) - 0.3, -0.7)
    axes.set_xlabel("exponent in float32 before loss scaling; thick: 5th to 95th percentile")
    add_legend(axes)
    return figure


def draw_float16(axes: Axes, drawn: Sequence[Counter]) -> None:
    """Its range, and limits around it and what most elements are."""
    axes.axvspan(NORMAL, TOP + 1, color=FULL, label="float16, full precision")
    axes.axvspan(SUBNORMAL, NORMAL, color=PART, label="float16, subnormal")
    low = min([SUBNORMAL, *(quantile(each, 0.05) for each in drawn)])
    axes.set_xlim(low - 4, max([TOP, *map(max, drawn)]) + 4)


def draw_grads(report: amp.Preflight) -> Figure:
    """The exponents of all grads, and which share each loss scale loses."""
    figure, ((left, right),) = figures.new_figure(1, 2, (10, 3.9))
    grads = report.grads()
    exponents = Counter(grads.exponents)
    draw_float16(left, [exponents] if exponents else [])
    shares = [100 * count / grads.nonzero for count in exponents.values()]
    left.bar(list(exponents), shares, width=1.0, align="edge", color=COLORS["activation grad"])
    left.set_xlabel("binary exponent of grads before loss scaling")
    lost = [100 * report.share_lost(2.0**scale) for scale in LOSS_SCALES]
    right.plot(LOSS_SCALES, lost, color="black", marker="o", markersize=3, label="rounded to 0")
    over = [scale for scale in LOSS_SCALES if grads.max_abs * 2.0**scale > LARGEST]
    if over:
        right.axvspan(over[0], LOSS_SCALES[-1], color=OVERFLOW, alpha=0.2, label="overflow")
    right.set_xlabel("log2 of the loss scale")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_ylabel("share of nonzero grads (%)")
        add_legend(axes)
    return figure


def add_legend(axes: Axes) -> None:
    """Above the axes, where it covers nothing."""
    axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)

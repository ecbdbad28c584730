"""Figures of exponents against what float16 holds."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import torch

from torchamp._tools.inspect.ranges import BFLOAT16, FLOAT16, Range

#: Kind, module and the magnitudes of its tensors of that kind.
Row = tuple[str, str, Range]

_MAX_ROWS = 48
_LOSS_SCALES = range(0, 25)
_FULL, _SUBNORMAL, _OVERFLOW = "#d8e8f5", "#eef4fa", "#c8102e"
_COLOURS = {
    "weight": "#009e73",
    "activation": "#0072b2",
    "activation grad": "#e69f00",
    "weight grad": "#cc79a7",
}
_ORDER = list(_COLOURS)


def save_plots(rows: Sequence[Row], grads: Range, title: str, folder: str) -> list[str]:
    """Writes range.png and grads.png; returns their paths."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(
            "save_plots: expected matplotlib to be installed, got none; pip install matplotlib"
        ) from error
    os.makedirs(folder, exist_ok=True)
    title = f"{title}, torch {torch.__version__}, {datetime.date.today()}"
    figures = {"range.png": _ranges(Figure, rows, title), "grads.png": _grads(Figure, grads, title)}
    paths = []
    for name, figure in figures.items():
        paths.append(os.path.join(folder, name))
        figure.savefig(paths[-1], dpi=150, bbox_inches="tight")
    return paths


def _ranges(make_figure: Any, rows: Sequence[Row], title: str) -> Any:
    """A line per row: from its smallest to its largest exponent, and from the 5th to the 95th
    percentile."""
    full = sorted((row for row in rows if row[2].nonzero), key=lambda row: _ORDER.index(row[0]))
    shown = _furthest(full)
    figure = make_figure(figsize=(9, 1.6 + 0.24 * len(shown)))
    axes = figure.add_subplot()
    _draw_bands(axes)
    for i, (kind, _, found) in enumerate(shown):
        first, bulk_first, bulk_last, last = _quantiles(found)
        axes.plot([first, last + 1], [i, i], color=_COLOURS[kind], linewidth=1)
        axes.plot([bulk_first, bulk_last + 1], [i, i], color=_COLOURS[kind], linewidth=5)
        if found.overflows(FLOAT16):
            axes.plot([last + 1], [i], marker=">", color=_OVERFLOW)
    _set_limits(axes, [row[2] for row in shown])
    axes.set_yticks(range(len(shown)), [f"{kind}, {module}" for kind, module, _ in shown])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(len(shown) - 0.3, -0.7)
    axes.set_xlabel(
        "binary exponent of the elements in float32, before loss scaling; thick: 5th to 95th "
        f"percentile\nbfloat16 holds $2^{{{BFLOAT16.normal}}}$ to $2^{{{BFLOAT16.top + 1}}}$",
        fontsize=8,
    )
    some = f"\n{len(shown)} of {len(full)} rows: those with the largest and the smallest elements"
    axes.set_title(title + (some if len(shown) < len(full) else ""), fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7)
    return figure


def _draw_bands(axes: Any) -> None:
    axes.axvspan(FLOAT16.normal, FLOAT16.top + 1, color=_FULL, label="float16, full precision")
    axes.axvspan(FLOAT16.subnormal, FLOAT16.normal, color=_SUBNORMAL, label="float16, subnormal")


def _quantiles(found: Range) -> list[int]:
    """Exponents; there are nonzero elements."""
    return [found.quantile(share) or 0 for share in (0.0, 0.05, 0.95, 1.0)]


def _set_limits(axes: Any, ranges: Sequence[Range]) -> None:
    """Around float16's range, and further where most elements of a row are."""
    low = min((_quantiles(found)[1] for found in ranges), default=0)
    high = max((_quantiles(found)[3] for found in ranges), default=0)
    axes.set_xlim(min(low, FLOAT16.subnormal) - 4, max(high, FLOAT16.top) + 4)


def _furthest(rows: Sequence[Row]) -> Sequence[Row]:
    """At most _MAX_ROWS, in their order: those with the largest and with the smallest elements."""
    if len(rows) <= _MAX_ROWS:
        return rows
    up = sorted(range(len(rows)), key=lambda i: -rows[i][2].max_abs)
    down = sorted(range(len(rows)), key=lambda i: _quantiles(rows[i][2])[1])
    return [rows[i] for i in sorted({*up[: _MAX_ROWS // 2], *down[: _MAX_ROWS // 2]})]


def _grads(make_figure: Any, grads: Range, title: str) -> Any:
    """The exponents of all grads, and which share each loss scale loses."""
    figure = make_figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    exponents = grads.exponents
    shares = [100 * count / grads.nonzero for count in exponents.values()]
    _draw_bands(left)
    left.bar(list(exponents), shares, width=1.0, align="edge", color=_COLOURS["activation grad"])
    _set_limits(left, [grads])
    left.set_xlabel("binary exponent of grads before loss scaling")
    left.set_ylabel("share of nonzero grads (%)")
    _add_legend(left)
    _draw_losses(right, grads)
    figure.suptitle(f"{title}: grads in float16", fontsize=9)
    return figure


def _draw_losses(axes: Any, grads: Range) -> None:
    lost = [100 * grads.share_lost(FLOAT16, scale) for scale in _LOSS_SCALES]
    axes.plot(_LOSS_SCALES, lost, color="black", marker="o", markersize=3, label="rounded to 0")
    over = [scale for scale in _LOSS_SCALES if grads.overflows(FLOAT16, scale)]
    if over:
        axes.axvspan(over[0], _LOSS_SCALES[-1], color=_OVERFLOW, alpha=0.2, label="overflow")
    axes.set_xlabel("log2 of the loss scale")
    axes.set_ylabel("share of nonzero grads (%)")
    axes.set_ylim(bottom=0)
    _add_legend(axes)


def _add_legend(axes: Any) -> None:
    """Above the axes, where it covers nothing."""
    axes.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)

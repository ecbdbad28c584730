"""The look of the experiments' figures: float32 grey, float16 levels orange, bfloat16 levels
purple, others blue and green. Casts by op are darker than 16-bit models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

FLOAT32 = "#636363"
COLORS = {
    "float32": FLOAT32,
    "O0": FLOAT32,
    "TF32": "#969696",
    "O1": "#a63603",
    "O2": "#f16913",
    "O3": "#fdbe85",
    "O4": "#54278f",
    "O5": "#9e9ac8",
    "native": "#3182bd",
    "apex": "#31a354",
}
MEMORY_COLORS = {
    "weights": FLOAT32,
    "grads": "#bdbdbd",
    "masters": "#fec44f",
    "state": "#9ecae1",
    "activations": "#74c476",
}
NUMBERS = {
    "O0": "float32",
    "TF32": "float32, products in TF32",
    "O1": "float16 autocast",
    "O2": "float16, float32 masters",
    "O3": "float16",
    "O4": "bfloat16 autocast",
    "O5": "bfloat16, float32 masters",
}


def level_name(level: str) -> str:
    return f"{level}  {NUMBERS[level]}"


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """A figure of ``size`` inches and its axes, [rows, columns]."""
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for each in axes.flat:
        each.grid(color="#e6e6e6", linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, title: str, caption: str, path: Path) -> None:
    """Writes a PNG with a title above and a caption below."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#555555")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_bars(axes: Axes, values: list[list[float]], colors: list[str], start: float = 0.0) -> None:
    """A horizontal bar for each list of values, from ``start`` to their median, with a dot for each
    value."""
    for row, (each, color) in enumerate(zip(values, colors)):
        axes.barh(row, float(np.median(each)) - start, left=start, color=color, height=0.6)
        if len(each) > 1:
            axes.plot(each, [row] * len(each), ".", color="black", markersize=4)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_yticks(range(len(values)), [])
    axes.grid(visible=False, axis="y")


def draw_memory(axes: Axes, rows: Sequence[Mapping[str, float]], unit: str) -> None:
    """A horizontal bar for each row of sizes, stacked by what they hold."""
    left = np.zeros(len(rows))
    for kind, color in MEMORY_COLORS.items():
        sizes = np.array([row[kind] for row in rows])
        if not sizes.any():
            continue
        axes.barh(range(len(rows)), sizes, left=left, color=color, height=0.6, label=kind)
        left += sizes
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(unit)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.06), "borderaxespad": 0}
    axes.legend(frameon=False, ncols=len(MEMORY_COLORS), fontsize=8, handlelength=1, **place)


def label_rows(axes: Axes, texts: list[str]) -> None:
    """Writes a text to the right of each row."""
    for row, text in enumerate(texts):
        axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def set_log_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of each decade of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def mark_float32(axes: Axes, value: float) -> None:
    """A dashed line at float32's value, with its name above."""
    axes.axvline(value, color=FLOAT32, linestyle="--", linewidth=1)
    axes.annotate(
        "float32",
        (value, 1.0),
        (0, 3),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=FLOAT32,
    )

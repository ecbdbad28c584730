"""Bar charts of benchmark results: milliseconds with quartiles, and a line at the baseline. Needs
matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

#: What the names of variants that are not torchamp's have in them.
OTHERS = ("torch", "bare", "no step", "float32", "TF32", "apex O2", "apex's", "apex FusedAdam(")
OURS_COLOR, OTHERS_COLOR = "#1f6fb4", "#b9bec4"
#: What steps beside apex are relative to.
APEX_BASE = "O2, FusedAdam"
#: Of a picture: two, black and white, and what smooths their edges.
COLORS = 64
#: Axes are logarithmic beyond this factor.
WIDEST = 20


@dataclass(frozen=True)
class Bar:
    """A variant: its time relative to the baseline's in the same rounds."""

    name: str
    times: float
    quartiles: tuple[float, float]
    label: str

    @property
    def color(self) -> str:
        is_ours = "FusedAdamW" in self.name or not any(word in self.name for word in OTHERS)
        return OURS_COLOR if is_ours else OTHERS_COLOR


@dataclass(frozen=True)
class Panel:
    """A picture: the variants of one workload, or of one network."""

    name: str
    title: str
    base: str
    bars: list[Bar]


def draw(panel: Panel, title: str, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from PIL import Image

    figure = Figure(figsize=(10, 1.9 + 0.24 * len(panel.bars)), layout="constrained")
    figure.suptitle(title)
    draw_panel(panel, figure.subplots())
    legend = [Patch(color=OURS_COLOR, label="torchamp"), Patch(color=OTHERS_COLOR, label="others")]
    figure.legend(handles=legend, loc="outside lower right", ncols=2, frameon=False)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=120)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(path, optimize=True)


def draw_panel(panel: Panel, axes: Any) -> None:
    bars = panel.bars[::-1]
    axes.barh([bar.name for bar in bars], [bar.times for bar in bars], height=0.7,
              color=[bar.color for bar in bars])  # fmt: skip
    for y, bar in enumerate(bars):
        axes.plot(bar.quartiles, (y, y), color="black", linewidth=1.2)
        end = max(bar.times, bar.quartiles[1])
        axes.annotate(bar.label, (end, y), (5, 0), textcoords="offset points", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.margins(x=0.3)
    if max(bar.times for bar in bars) > WIDEST:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.set_xlabel(f"time relative to {panel.base}, lower is better; lines: quartiles")
    axes.spines[["top", "right"]].set_visible(False)


def bar_of(name: str, milliseconds: float, quartiles: list[float], base_ms: float) -> Bar:
    times = milliseconds / base_ms
    first, third = (quartile / base_ms for quartile in quartiles)
    return Bar(name, times, (first, third), f"{times:.2f} × ({milliseconds:.4g} ms)")


def step_panels(rows: list[dict]) -> list[Panel]:
    return [
        Panel(
            row["workload"],
            f"{row['workload']}, {row['parameters']:,} parameters",
            "one pass",
            [
                bar_of(name, ms, row["quartiles"][name], row["one_pass_ms"][name])
                for name, ms in row["milliseconds"].items()
            ],
        )
        for row in rows
        if row["milliseconds"]
    ]


def apex_panels(rows: list[dict]) -> list[Panel]:
    return [
        Panel(
            row["workload"],
            f"{row['workload']}, {row['parameters']:,} parameters",
            APEX_BASE,
            [
                bar_of(name, ms, row["quartiles"][name], row["milliseconds"][APEX_BASE])
                for name, ms in row["milliseconds"].items()
            ],
        )
        for row in rows
    ]


def training_panels(rows: list[dict]) -> list[Panel]:
    return [
        Panel(
            row["network"],
            f"{row['network']}, {row['items']:,} {row['unit']} per iteration",
            row["base"],
            [
                bar_of(name, ms, row["quartiles"][name], row["milliseconds"][row["base"]])
                for name, ms in row["milliseconds"].items()
            ],
        )
        for row in rows
        if not row["not_run"]
    ]

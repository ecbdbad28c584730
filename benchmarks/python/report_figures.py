"""Bar charts of benchmark results. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path


def draw(panels: dict[str, dict[str, float]], title: str, path: Path) -> None:
    """Draws one bar chart per title, with its values by name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.8 + sum(map(_height, panels.values()))), layout="constrained")
    figure.suptitle(title)
    heights = [_height(bars) for bars in panels.values()]
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for (panel, numbers), axes in zip(panels.items(), grid[:, 0]):
        names = list(numbers)[::-1]
        bars = axes.barh(names, [numbers[name] for name in names])
        axes.bar_label(bars, fmt="%.4g", padding=3)
        axes.margins(x=0.12)
        axes.set(title=panel)
    figure.savefig(path, dpi=120)


def _height(bars: dict[str, float]) -> float:
    return 0.9 + 0.22 * len(bars)


def step_panels(rows: list[dict]) -> dict[str, dict[str, float]]:
    return {
        f"{row['workload']}: milliseconds per step, lower is better": row["milliseconds"]
        for row in rows
        if row["milliseconds"]
    }


def training_panels(rows: list[dict]) -> dict[str, dict[str, float]]:
    return {
        f"{row['network']}: {row['unit']}/s, higher is better": row["items_per_second"]
        for row in rows
        if row["items_per_second"]
    }

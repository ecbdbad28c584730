"""A table of the runs, and checks of their results."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from runs import Run

MIN_ACCURACY = 0.97

# Largest difference between the losses of C++ and Python at any step. The same seed gives both the
# same weights and batches, and both run the same kernels. The order of sums over threads can
# differ, and low-precision levels amplify that.
LOSS_TOLERANCE = {"O0": 1e-5, "O1": 1e-2, "O2": 1e-2, "O3": 1e-2, "O4": 1e-2, "O5": 1e-2}

COLUMNS = {
    "level": "{}",
    "language": "{}",
    "device": "{}",
    "backend": "{}",
    "test_accuracy": "{:.4f}",
    "ms_per_step": "{:.2f}",
    "peak_memory_mib": "{:.0f}",
    "loss_scale": "{:.0f}",
    "skipped_steps": "{}",
}


def cells(run: Run) -> list[str]:
    """Empty where there is no value. Peak memory on a CPU, which is mostly torch's, is left out."""
    values = {name: getattr(run, name) for name in COLUMNS}
    if run.device == "cpu":
        values["peak_memory_mib"] = math.nan
    empty = {name for name, value in values.items() if value != value}
    return ["" if name in empty else COLUMNS[name].format(values[name]) for name in COLUMNS]


def table(runs: list[Run]) -> str:
    """One line per run, columns aligned."""
    rows = [[name.replace("_", " ") for name in COLUMNS], *map(cells, runs)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def write_summary(runs: list[Run], path: Path) -> None:
    """The table as a CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(COLUMNS), *map(cells, runs)])


def largest_difference(first: Run, second: Run) -> float:
    """Largest difference of the losses at the same step, for two runs of equal length."""
    return max(abs(a.loss - b.loss) for a, b in zip(first.steps, second.steps))


def inaccuracies(runs: list[Run]) -> list[str]:
    """A sentence for each run that did not learn enough."""
    return [
        f"{run.level} {run.language}: expected a test accuracy of at least {MIN_ACCURACY}, "
        f"got {run.test_accuracy:.4f}"
        for run in runs
        if not run.test_accuracy >= MIN_ACCURACY
    ]


def disagreement(first: Run, second: Run) -> str | None:
    """A sentence if the two languages' runs at one level differ, else None."""
    pair = f"{first.level} {first.language} and {second.language}"
    if len(first.steps) != len(second.steps):
        counts = f"{len(first.steps)} and {len(second.steps)}"
        return f"{pair}: expected the same number of steps, got {counts}"
    for a, b in zip(first.steps, second.steps):
        if (a.loss_scale, a.skipped) != (b.loss_scale, b.skipped):
            return (
                f"{pair}: expected the same loss scale and skips, got at step {a.step} {a} and {b}"
            )
        if not abs(a.loss - b.loss) <= LOSS_TOLERANCE[first.level]:
            return (
                f"{pair}: expected losses within {LOSS_TOLERANCE[first.level]}, "
                f"got {a.loss} and {b.loss} at step {a.step}"
            )
    return None

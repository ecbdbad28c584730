"""Which level fits a model, by a preflight in float32 and a short training at each level.

    python which_precision.py --model transformer
    python which_precision.py --trouble range
    python which_precision.py --model my_file.py:make  # make(device) gives model, batch, loss_fn

Writes which_precision.csv, which_precision.png (time and loss), range.png and grads.png (exponents
against float16's), and summary.md. Exits with status 1 where a level of a shipped model fits though
it should not, or does not though it should.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import figures
import torch
from arms import Arm, amp_arm, float32_arm
from lab import (
    MIB,
    TF32,
    caption,
    counted_bytes,
    finish,
    markdown_table,
    parse_command_line,
    products_of,
    seconds_now,
    write_csv,
)
from plot_ranges import save_plots
from precision_models import MODELS, TROUBLES, Problem, load_problem

from torchamp import amp

PRESETS = {
    "small": {"steps": 20, "width": 64},
    "original": {"steps": 200, "width": 1024},
}
LOSS_TOLERANCE = 0.02  # of float32's last loss
LEARNING_RATE = 0.05
#: How often each arm is trained, in turn: what slows the machine for a while slows every arm.
ROUNDS = 3


class Row(NamedTuple):
    """A line of which_precision.csv. Times are of a step; losses and times are NaN for a level
    that preflight refuses, which is not trained."""

    level: str
    fits: bool
    reason: str
    first_loss: float = float("nan")
    last_loss: float = float("nan")
    loss_error: float = float("nan")
    ms: float = float("nan")
    least_ms: float = float("nan")
    most_ms: float = float("nan")
    mib: float = float("nan")


def make_arm(problem: Problem, level: str) -> Arm:
    """Of a copy of the model."""
    model = copy.deepcopy(problem.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    if level in ("fp32", TF32):
        return float32_arm(model, optimizer)
    return amp_arm(model, optimizer, level)


def train(
    problem: Problem, level: str, reason: str, times: list[float], arguments: argparse.Namespace
) -> Row:
    """A short training on the same batch, from the same weights. ``times``: of earlier rounds, to
    which this one's are added."""
    arm = make_arm(problem, level)
    losses = []
    for step in range(arguments.steps + 1):
        start = seconds_now(arguments.device)
        arm.optimizer.zero_grad()
        loss = problem.loss_fn(call(arm.model, problem.batch))
        arm.update(loss)
        losses.append(float(loss.detach()))
        if step > 0:  # the first one warms up
            times.append(1e3 * (seconds_now(arguments.device) - start))
    sizes = counted_bytes(arm.model, arm.optimizer, lambda: call(arm.model, problem.batch))
    if level not in ("fp32", TF32):
        amp.release(arm.model)
    row = Row(level, True, reason, losses[0], losses[-1])
    return row._replace(
        ms=statistics.median(times),
        least_ms=min(times),
        most_ms=max(times),
        mib=sum(sizes.values()) / MIB,
    )


def call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def measure(problem: Problem, report: amp.Preflight, arguments: argparse.Namespace) -> list[Row]:
    """Float32 first, then each level; those that do not fit are not trained."""
    rows = {"fp32": Row("fp32", True, "the reference")}
    rows |= {each.level: Row(each.level, each.fits, each.reason) for each in report.verdicts}
    times: dict[str, list[float]] = {level: [] for level, row in rows.items() if row.fits}
    for _ in range(ROUNDS):
        for level in times:
            gc.collect()
            with products_of(level):
                rows[level] = train(problem, level, rows[level].reason, times[level], arguments)
    for level in times:
        plain, loss = rows["fp32"].last_loss, rows[level].last_loss
        error = abs(loss - plain) / max(abs(plain), 1e-6)
        rows[level] = rows[level]._replace(loss_error=error, fits=error <= LOSS_TOLERANCE)
    return list(rows.values())


def line(row: Row, plain: Row, device: torch.device) -> str:
    """The verdict on a level, as a sentence."""
    if row.ms != row.ms:
        return f"{row.level}: does not fit: {row.reason}"
    word = "fits" if row.fits else "does not fit"
    where = "this CPU" if device.type == "cpu" else "this GPU"
    return (
        f"{row.level}: {word}, loss {100 * row.loss_error:.2f} % off float32's after training, "
        f"{row.ms / plain.ms:.2f} × time on {where}, {row.mib / plain.mib:.2f} × memory"
    )


def problems(rows: Sequence[Row], expected: frozenset[str] | None) -> list[str]:
    """A sentence for each level that fits though it should not, or does not though it should."""
    found = []
    for row in rows[1:] if expected is not None else []:
        if row.fits == (row.level in expected):
            word = "fail" if row.level in expected else "fit"
            found.append(f"{row.level}: expected it to {word}, got: {row.reason}")
    return found


def table(rows: Sequence[Row]) -> str:
    header = ["arm", "fits", "last loss", "% off float32", "ms per step", "least to most", "MiB"]
    return markdown_table(header, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    if row.ms != row.ms:
        return [row.level, "no", *["–"] * 5]
    numbers = [f"{row.last_loss:.4f}", f"{100 * row.loss_error:.2f}", f"{row.ms:.2f}"]
    spread = f"{row.least_ms:.2f} to {row.most_ms:.2f}"
    return [row.level, "yes" if row.fits else "no", *numbers, spread, f"{row.mib:.2f}"]


def draw(rows: Sequence[Row], name: str, arguments: argparse.Namespace) -> None:
    """Time of a step and last loss, a bar for each arm that was trained."""
    trained = [row for row in rows if row.ms == row.ms]
    figure, axes = figures.new_figure(1, 2, (11, 0.45 * len(trained) + 1.8))
    places = range(len(trained))
    colors = [figures.COLORS.get(row.level, figures.FLOAT32) for row in trained]
    axes[0, 0].barh(places, [row.ms for row in trained], color=colors)
    figures.label_rows(
        axes[0, 0], [f"{row.ms:.3g} ms, × {row.ms / trained[0].ms:.2f}" for row in trained]
    )
    figures.mark_float32(axes[0, 0], trained[0].ms)
    axes[0, 0].set_xlabel("ms per step, median")
    errors = [100 * row.loss_error for row in trained]
    axes[0, 1].barh(places, errors, color=colors)
    axes[0, 1].axvline(100 * LOSS_TOLERANCE, linestyle="--", color=figures.FLOAT32)
    axes[0, 1].set_xscale("log")
    axes[0, 1].set_xlim(1e-5, 1e2)
    axes[0, 1].set_xlabel("last loss, % off float32's (dashed: the most that fits)")
    for each in axes[0]:
        each.set_yticks(places, [row.level for row in trained])
        each.invert_yaxis()
    title = f"Levels that fit {name}, trained for {arguments.steps} steps"
    figures.save(figure, title, caption(arguments.device), arguments.out / "which_precision.png")


def make_problem(arguments: argparse.Namespace) -> tuple[str, Problem]:
    torch.manual_seed(arguments.seed)
    if arguments.trouble:
        make = TROUBLES[arguments.trouble]
        return f"trouble of {arguments.trouble}", make(arguments.width, arguments.device)
    if arguments.model in MODELS:
        return arguments.model, MODELS[arguments.model](arguments.width, arguments.device)
    return arguments.model, load_problem(arguments.model, arguments.device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", help="mlp, conv, transformer or FILE:function")
    parser.add_argument("--trouble", choices=list(TROUBLES), help="a model that fails")
    parser.add_argument("--steps", type=int, help="of each arm's training")
    parser.add_argument("--width", type=int, help="of the shipped models")
    arguments = parse_command_line(parser, "which_precision", PRESETS)

    name, problem = make_problem(arguments)
    report = amp.preflight(problem.model, problem.batch, problem.loss_fn)
    save_plots(report, arguments.out, caption(arguments.device))
    rows = measure(problem, report, arguments)
    write_csv(rows, arguments.out / "which_precision.csv")
    draw(rows, name, arguments)
    verdicts = "\n".join(line(row, rows[0], arguments.device) for row in rows[1:])
    tf32 = "" if any(row.level == TF32 for row in rows) else "TF32: n/a on this device"
    parts = [caption(arguments.device), f"```\n{report}\n```", table(rows), verdicts, tf32]
    title = f"Which precision fits {name}"
    return finish(
        title, [part for part in parts if part], problems(rows, problem.fails), arguments.out
    )


if __name__ == "__main__":
    sys.exit(main())

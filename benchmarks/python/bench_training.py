"""Measures the wall-clock time of training iterations (forward, backward, step) of networks in
float32, with torch.amp and at the opt levels with fused optimizers.

The variants of a network are timed round-robin in one process. A variant whose loss is not finite
or does not fall is left out, with the reason.

    python benchmarks/python/bench_training.py [--preset full] [--limit 100] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import command_line
import torch
from memory import release
from networks import PRESETS, Task
from timing import Timing, sample_in_turn
from trainer import DoesNotTrain, Trainer
from training_variants import base_for, names_for, set_precision

FLOAT32 = "float32"
#: A variant is not timed if an iteration takes this many times float32's, and this many ms.
TOO_SLOW = 5
TOO_SLOW_MS = 500.0
#: Fraction of the time limit; with less left no further network is started.
LEAST_SHARE = 0.08


@dataclass
class Row:
    """The iterations of a network, by variant: milliseconds, their quartiles, host milliseconds
    until all work was queued (CUDA), speed relative to torch.amp (`base` names its dtype) and to
    float32, `unit`s per second, peak bytes of an iteration without the other variants' memory
    (CUDA), and skipped steps. left_out: why variants have no times. not_run: why the network has
    none."""

    network: str
    items: int
    unit: str
    base: str
    parameters: int = 0
    rounds: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    host_ms: dict[str, float | None] = field(default_factory=dict)
    times_as_fast_as_torch_amp: dict[str, float] = field(default_factory=dict)
    times_as_fast_as_float32: dict[str, float] = field(default_factory=dict)
    items_per_second: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int | None] = field(default_factory=dict)
    skipped_steps: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    not_run: str = ""

    def add(self, trainer: Trainer, timings: dict[str, Timing]) -> None:
        name, timing = trainer.name, timings[trainer.name]
        self.rounds = len(timing.samples)
        self.milliseconds[name] = timing.milliseconds
        self.quartiles[name] = timing.quartiles
        self.host_ms[name] = timing.host_ms
        self.items_per_second[name] = 1e3 * self.items / timing.milliseconds
        self.peak_bytes[name] = trainer.peak_bytes
        for base, times_as_fast in (
            (self.base, self.times_as_fast_as_torch_amp),
            (FLOAT32, self.times_as_fast_as_float32),
        ):
            if base in timings:
                times_as_fast[name] = timings[base].milliseconds / timing.milliseconds


class Bench:
    """The trainers of one network."""

    def __init__(self, name: str, task: Task, device: str) -> None:
        self.task, self.device = task, device
        with torch.device(device):
            self.batch = task.batch()
        self.trainers: dict[str, Trainer] = {}
        self.row = Row(name, task.items, task.unit, base_for(device), count_parameters(task))

    def set_up(self, until: float) -> None:
        slowest_ms = float("inf")
        for name in names_for(self.device):
            if time.monotonic() > until:
                self.row.left_out[name] = "the time limit was reached"
            elif self._try_to_add(name, slowest_ms) and name == FLOAT32:
                slowest_ms = max(TOO_SLOW_MS, TOO_SLOW * self.trainers[name].sample().milliseconds)

    def _try_to_add(self, name: str, slowest_ms: float) -> bool:
        trainer = Trainer(name, self.device)
        try:
            trainer.set_up(self.task, self.batch, slowest_ms)
        except (RuntimeError, ValueError, ImportError) as error:
            # Also torch's: out of memory, no such kernel; no linear for float8; not installed.
            self._leave_out(trainer, error)
            return False
        self.trainers[name] = trainer
        return True

    def _leave_out(self, trainer: Trainer, error: Exception) -> None:
        self.row.left_out[trainer.name] = str(error).splitlines()[0]
        trainer.close()
        release(self.device)

    def time(self, rounds: int, until: float) -> None:
        samplers = {name: trainer.sample for name, trainer in self.trainers.items()}
        timings = sample_in_turn(samplers, rounds, prepare=set_precision, until=until)
        for name, trainer in self.trainers.items():
            try:
                self.row.skipped_steps[name] = trainer.finish()
                self.row.add(trainer, timings)
            except DoesNotTrain as error:
                self.row.left_out[name] = str(error)

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.close()
        self.trainers.clear()
        release(self.device)


def count_parameters(task: Task) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in task.make().parameters())


def measure_network(name: str, task: Task, device: str, repeats: int, until: float) -> Row:
    bench = Bench(name, task, device)
    try:
        bench.set_up(until)
        bench.time(repeats, until)
    finally:
        bench.close()
    return bench.row


def measure(device: str, repeats: int, preset: str, limit: float) -> Iterator[Row]:
    """Each network gets twice the average share of remaining time that later ones get."""
    preset = preset or ("full" if device == "cuda" else "small")
    tasks = PRESETS[preset]
    end = time.monotonic() + limit
    for number, (name, task) in enumerate(tasks.items()):
        left = end - time.monotonic()
        if left < LEAST_SHARE * limit:
            reason = f"the time limit of {limit:.0f} s was reached"
            yield Row(name, task.items, task.unit, base_for(device), not_run=reason)
            continue
        share = 2 * left / (len(tasks) - number + 1)
        yield measure_network(name, task, device, repeats, time.monotonic() + share)


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.network}, {row.parameters:,} parameters, {row.items} {row.unit}")
        if row.not_run:
            print(f"  not run: {row.not_run}")
        for name, milliseconds in row.milliseconds.items():
            first, third = row.quartiles[name]
            amp, single = row.times_as_fast_as_torch_amp, row.times_as_fast_as_float32
            print(f"  {name:20} {milliseconds:9.2f} ms ({first:.2f}–{third:.2f})  "
                  f"{amp.get(name, float('nan')):5.2f} x {row.base}  "
                  f"{single.get(name, float('nan')):5.2f} x float32  "
                  f"{row.items_per_second[name]:8.0f} {row.unit}/s")  # fmt: skip
        for name, reason in row.left_out.items():
            print(f"  {name:20} left out: {reason}")


if __name__ == "__main__":
    command_line.run(
        __doc__,
        measure,
        print_table,
        preset=dict(choices=list(PRESETS), help="default: full on CUDA, small elsewhere"),
        limit=dict(type=float, default=420.0, help="time limit for all networks, in seconds"),
    )

"""Times the work after a backward: unscaling, checking and the optimizer's step.

Each variant is timed in turn with "one pass", the baseline of the comparison, in rounds of their
own, so that a slower minute of the machine slows both.

    python benchmarks/python/bench_step.py [--device cpu] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import command_line
import torch
from bare_step import bare_step, is_available
from memory import free_bytes, release
from step_variants import VARIANTS, Grads, Variant
from timing import Timing, time_interleaved
from workloads import STEP_WORKLOADS, copy_of, count_elements

#: Minimum traffic of a step with float32 masters for a float16 parameter: read the grad twice
#: (check, step), read and write master and two moments, write the parameter.
FLOOR_BYTES = 30
#: Upper bound of a variant's memory per parameter, including temporaries.
VARIANT_BYTES = 24
#: Memory per parameter that the variants of a workload share.
SHARED_BYTES = 6
#: Fraction of free memory to use; the copy's buffers are in the rest.
USABLE = 0.9
BASE = "one pass"
COPY = "bare copy"
BARE = "bare AVX2 loop"


@dataclass
class Row:
    """The steps of a workload, by variant: milliseconds, their quartiles, the milliseconds of one
    pass in the same rounds, the quotient of both, host milliseconds (CUDA), and bytes per parameter
    of weights, grads, masters and moments. Includes a copy of floor_bytes per parameter.
    not_queued_ahead: variants whose times include host time. not_run: why times are missing."""

    workload: str
    parameters: int
    floor_bytes: int = FLOOR_BYTES
    milliseconds: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    one_pass_ms: dict[str, float] = field(default_factory=dict)
    times_one_pass: dict[str, float] = field(default_factory=dict)
    host_ms: dict[str, float | None] = field(default_factory=dict)
    bytes_per_parameter: dict[str, float] = field(default_factory=dict)
    not_queued_ahead: list[str] = field(default_factory=list)
    not_run: str = ""

    def add(self, name: str, timing: Timing, base: Timing) -> None:
        self.milliseconds[name] = timing.milliseconds
        self.quartiles[name] = timing.quartiles
        self.one_pass_ms[name] = base.milliseconds
        self.times_one_pass[name] = timing.milliseconds / base.milliseconds
        self.host_ms[name] = timing.host_ms
        if not timing.queued_ahead:
            self.not_queued_ahead.append(name)


def needed_bytes(elements: int) -> int:
    """Memory for one pass and another variant."""
    return int((SHARED_BYTES + 2 * VARIANT_BYTES) * elements / USABLE)


def variants_on(device: str) -> dict[str, Callable[[Grads], Variant]]:
    return VARIANTS | ({BARE: bare_step} if is_available(device) else {})


def measure_beside(
    row: Row, base: Variant, name: str, run: Callable[[], object], device: str, repeats: int
) -> None:
    timings = time_interleaved({BASE: base.run, name: run}, device, repeats)
    row.add(name, timings[name], timings[BASE])
    if BASE not in row.milliseconds:
        row.add(BASE, timings[BASE], timings[BASE])


def measure_variants(row: Row, device: str, repeats: int) -> None:
    shared = Grads(STEP_WORKLOADS[row.workload], device)
    base = VARIANTS[BASE](shared)
    copy = copy_of(row.parameters * FLOOR_BYTES, device)
    measure_beside(row, base, COPY, copy, device, repeats)
    row.bytes_per_parameter[BASE] = base.bytes() / row.parameters
    for name, make in variants_on(device).items():
        if name == BASE:
            continue
        try:
            variant = make(shared)
            measure_beside(row, base, name, variant.run, device, repeats)
            row.bytes_per_parameter[name] = variant.bytes() / row.parameters
        except torch.OutOfMemoryError:
            row.not_run = f"out of memory at {name}"
        variant = None
        release(device)


def measure_workload(name: str, device: str, repeats: int) -> Row:
    row = Row(name, count_elements(STEP_WORKLOADS[name]))
    release(device)
    free, needed = free_bytes(device), needed_bytes(row.parameters)
    if needed > free:
        row.not_run = f"two variants need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        return row
    measure_variants(row, device, repeats)
    release(device)
    return row


def measure(device: str, repeats: int) -> Iterator[Row]:
    for name in STEP_WORKLOADS:
        yield measure_workload(name, device, repeats)


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.workload}, {row.parameters:,} parameters")
        if row.not_run:
            print(f"  not run: {row.not_run}")
        for name, milliseconds in row.milliseconds.items():
            size = row.bytes_per_parameter.get(name)
            kept = "" if size is None else f"{size:7.1f} bytes/parameter"
            host = "" if row.host_ms[name] is None else f"{row.host_ms[name]:7.2f} ms on the host"
            mark = "*" if name in row.not_queued_ahead else " "
            print(f"  {name:34} {milliseconds:9.3f} ms{mark} {row.times_one_pass[name]:6.2f}x "
                  f"{kept} {host}")  # fmt: skip
    if any(row.not_queued_ahead for row in rows):
        print(command_line.NOT_QUEUED_AHEAD)


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)

"""Times what mixed precision adds to a backward: unscaling, checking, the optimizer's step.

Variants are timed in turn, in one process. Where memory does not hold all of a workload's at once
they go in batches, each beside "one pass", with which times are compared.

    python benchmarks/python/bench_step.py [--device cpu] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import command_line
import torch
from step_variants import VARIANTS, Grads
from timing import time_interleaved
from workloads import STEP_WORKLOADS, copy_of, count_elements

#: What the leanest step with float32 masters has to read and write for a float16 parameter: the
#: grad twice (check, step), master and two averages in and out, the parameter out.
FLOOR_BYTES = 30
#: What a variant holds for a parameter, and its temporaries, at the most.
VARIANT_BYTES = 24
#: What the variants of a workload share.
SHARED_BYTES = 6 + FLOOR_BYTES // 2
BASE = "one pass"
COPY = "bare copy"


@dataclass
class Row:
    """A workload's steps, by variant: milliseconds, how many times those of one pass they are, and
    bytes a parameter of weights, grads, masters and averages. A copy that moves as many bytes as
    the floor stands beside them."""

    workload: str
    parameters: int
    floor_bytes: int = FLOOR_BYTES
    milliseconds: dict[str, float] = field(default_factory=dict)
    times_one_pass: dict[str, float] = field(default_factory=dict)
    bytes_per_parameter: dict[str, float] = field(default_factory=dict)


def free_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    return 1024 * int(fields["MemAvailable"].split()[0])


def batches(elements: int, device: str) -> Iterator[list[str]]:
    """The variants' names, as many at once as memory holds; none if it does not hold two."""
    fit = (int(free_bytes(device) * 0.9) // elements - SHARED_BYTES) // VARIANT_BYTES
    others = [name for name in VARIANTS if name != BASE]
    for first in range(0, len(others) if fit >= 2 else 0, max(1, fit - 1)):
        yield [BASE, *others[first : first + fit - 1]]


def measure_batch(row: Row, names: list[str], device: str, repeats: int) -> None:
    shared = Grads(STEP_WORKLOADS[row.workload], device)
    variants = {name: VARIANTS[name](shared) for name in names}
    runs = {name: variant.run for name, variant in variants.items()}
    half = copy_of(row.parameters * FLOOR_BYTES // 2, device)  # twice, which saves memory
    runs[COPY] = lambda: (half(), half())
    times = time_interleaved(runs, device, repeats)
    for name, milliseconds in times.items():
        if name not in row.milliseconds:
            row.milliseconds[name] = milliseconds
            row.times_one_pass[name] = milliseconds / times[BASE]
    for name, variant in variants.items():
        row.bytes_per_parameter[name] = variant.bytes() / row.parameters


def measure(device: str, repeats: int) -> list[Row]:
    rows = []
    for workload, shapes in STEP_WORKLOADS.items():
        row = Row(workload, count_elements(shapes))
        for names in batches(row.parameters, device):
            measure_batch(row, names, device, repeats)
            gc.collect()
        if row.milliseconds:
            rows.append(row)
    return rows


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.workload}, {row.parameters:,} parameters")
        for name, milliseconds in row.milliseconds.items():
            size = row.bytes_per_parameter.get(name)
            kept = "" if size is None else f"{size:7.1f} bytes a parameter"
            print(f"  {name:34} {milliseconds:9.2f} ms  {row.times_one_pass[name]:6.2f}x {kept}")


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)

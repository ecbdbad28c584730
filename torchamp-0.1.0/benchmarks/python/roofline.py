"""Predicts the time of torchamp's kernels from memory traffic, launches and memory latency, and
compares it with measurements in files of bench_ops.py or bench_step.py.

    python benchmarks/python/roofline.py                    # predictions for four GPUs
    python benchmarks/python/roofline.py out/bench/*.json   # predicted and measured, on any device

A device's bandwidth is that of the largest plain copy in the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cards import CARDS, Card, processor_card
from kernel_costs import ITERATIONS, OPS, STEPS, Kernels, total_bytes, total_launches, total_ms
from markdown import table
from workloads import STEP_WORKLOADS, WORKLOADS, Shapes, count_elements

ALL_WORKLOADS = {**STEP_WORKLOADS, **WORKLOADS}
KERNELS: dict[str, Kernels] = {**OPS, **STEPS, **ITERATIONS}


@dataclass(frozen=True)
class Copy:
    """A plain copy: bytes read and written, and milliseconds."""

    bytes: int
    milliseconds: float

    @property
    def gbps(self) -> float:
        return self.bytes / self.milliseconds / 1e6


@dataclass(frozen=True)
class Measured:
    """The measured time of a kernel, or of part of an iteration, on a workload."""

    name: str
    workload: str
    milliseconds: float


def measured_in(rows: list[dict]) -> Iterator[Measured]:
    """The measurements that have a prediction."""
    for row in rows:
        times = {row["op"]: row["torchamp_ms"]} if "op" in row else row.get("milliseconds", {})
        for name, milliseconds in times.items():
            if name in KERNELS:
                yield Measured(name, row["workload"], milliseconds)


def copies_in(rows: list[dict]) -> Iterator[Copy]:
    for row in rows:
        elements = count_elements(ALL_WORKLOADS[row["workload"]])
        if "op" in row:
            yield Copy(row["bytes_per_element"] * elements, row["copy_ms"])
        elif "bare copy" in row["milliseconds"]:
            yield Copy(row["floor_bytes"] * elements, row["milliseconds"]["bare copy"])


def card_of(result: dict) -> Card:
    """The device of a benchmark's file, with the bandwidth of its largest copy."""
    name = str(result["machine"]["device"])
    copy = max(copies_in(result["rows"]), key=lambda copy: copy.bytes)
    known = [card for key, card in CARDS.items() if key in name.lower()]
    return replace(known[0] if known else processor_card(name, 0.0), copy_gbps=copy.gbps)


def comparison(result: dict) -> str:
    """A table of predicted and measured times for a benchmark's file."""
    card = card_of(result)
    rows = []
    for measured in measured_in(result["rows"]):
        kernels, shapes = KERNELS[measured.name], ALL_WORKLOADS[measured.workload]
        predicted = total_ms(kernels, shapes, card)
        moved = total_bytes(kernels, shapes)
        rows.append([
            measured.name, measured.workload, str(total_launches(kernels, shapes, card)),
            f"{moved / 1e6:.1f}", f"{predicted:.3f}", f"{moved / predicted / 1e6:.0f}",
            f"{measured.milliseconds:.3f}", f"{moved / measured.milliseconds / 1e6:.0f}",
            f"{measured.milliseconds / predicted:.2f}",
        ])  # fmt: skip
    head = ["kernel", "workload", "launches", "MB", "predicted, ms", "GB/s", "measured, ms", "GB/s",
            "measured / predicted"]  # fmt: skip
    title = f"{result['machine']['device']}, a copy moves {card.copy_gbps:.0f} GB/s"
    return f"{title}\n\n{table(head, rows, text_columns=2)}"


def launches_of(kernels: Kernels, shapes: Shapes) -> str:
    """The number of launches, equal on all GPUs."""
    return str(total_launches(kernels, shapes, CARDS["h100"]))


def predictions_of_kernels(workload: str) -> str:
    """A table of every kernel on one workload."""
    shapes = ALL_WORKLOADS[workload]
    rows = []
    for name, kernels in KERNELS.items():
        times = [f"{total_ms(kernels, shapes, card):.3f}" for card in CARDS.values()]
        moved = f"{total_bytes(kernels, shapes) / 1e6:.0f}"
        rows.append([name, moved, launches_of(kernels, shapes), *times])
    head = [f"{workload}, ms", "MB", "launches", *(card.name for card in CARDS.values())]
    return table(head, rows)


def predictions_of_workloads(name: str) -> str:
    """A table of one kernel, or part of an iteration, on every workload."""
    rows = []
    for workload, shapes in ALL_WORKLOADS.items():
        times = [f"{total_ms(KERNELS[name], shapes, card):.3f}" for card in CARDS.values()]
        launches = launches_of(KERNELS[name], shapes)
        rows.append([workload, f"{count_elements(shapes):,}", launches, *times])
    head = [f"{name}, ms", "parameters", "launches", *(card.name for card in CARDS.values())]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="JSON files of benchmarks")
    arguments = parser.parse_args()
    if not arguments.results:
        print("Predicted, not measured.\n")
        print(predictions_of_workloads("one pass"), predictions_of_kernels("gpt2_124m"), sep="\n\n")
    for path in arguments.results:
        print(comparison(json.loads(path.read_text())), end="\n\n")


if __name__ == "__main__":
    main()

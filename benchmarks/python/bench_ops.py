"""Times torchamp's ops against equivalent torch ops, and against a plain copy.

Each row comes from one interleaved run in one process; compare only within a row.

    python benchmarks/python/bench_ops.py [--device cpu] [--repeats 15] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import command_line
import torch
from algorithms import ALGORITHMS, step_of
from timing import Timing, Variants, time_interleaved
from workloads import WORKLOADS, copy_of, count_elements, random_tensors

from torchamp import ops

E4M3 = torch.float8_e4m3fn


@dataclass
class Row:
    """One op on one workload. bytes_per_element: the minimum that it must read and write. torch_ms
    and times_torch are None if torch has no such op. quartiles and host_ms (milliseconds, CUDA) are
    by implementation. not_queued_ahead: the implementations whose times include host time."""

    op: str
    workload: str
    bytes_per_element: int
    torchamp_ms: float
    torch_ms: float | None
    copy_ms: float
    times_torch: float | None
    of_copy: float
    quartiles: dict[str, tuple[float, float]]
    host_ms: dict[str, float | None]
    not_queued_ahead: list[str]


def row_of(op: str, workload: str, num_bytes: int, timings: dict[str, Timing]) -> Row:
    own, torchs, copy = (timings.get(name) for name in ("torchamp", "torch", "copy"))
    return Row(
        op,
        workload,
        num_bytes,
        own.milliseconds,
        torchs and torchs.milliseconds,
        copy.milliseconds,
        times_torch=torchs and torchs.milliseconds / own.milliseconds,
        of_copy=copy.milliseconds / own.milliseconds,
        quartiles={name: timing.quartiles for name, timing in timings.items()},
        host_ms={name: timing.host_ms for name, timing in timings.items()},
        not_queued_ahead=[name for name, timing in timings.items() if not timing.queued_ahead],
    )


class Lists:
    """The tensors of one workload."""

    def __init__(self, workload: str, device: str) -> None:
        shapes = WORKLOADS[workload]
        self.half = random_tensors(shapes, torch.float16, device)
        self.full = random_tensors(shapes, torch.float32, device)
        self.inv_scale = torch.ones((), device=device)
        self.found_inf = torch.zeros((), device=device)

    def cases(self) -> dict[str, tuple[int, Variants]]:
        """For each op, its bytes per element and its implementations by name."""
        half, full, inv_scale, found_inf = self.half, self.full, self.inv_scale, self.found_inf
        unscale_ = torch._amp_foreach_non_finite_check_and_unscale_

        def torch_unscale() -> None:
            torch._foreach_copy_(full, half)
            unscale_(full, found_inf, inv_scale)

        def torch_scale() -> None:
            torch._foreach_copy_(full, half)
            torch._foreach_mul_(full, 0.5)

        def torch_axpby() -> None:
            torch._foreach_mul_(full, 0.5)
            torch._foreach_add_(full, half, alpha=0.5)

        matrices = [tensor.view(tensor.shape[0], -1) for tensor in half]
        scales = ops.float8_scales(matrices, dtype=E4M3)

        def torch_float8_cast() -> None:
            for matrix, scale in zip(matrices, scales):
                (matrix / scale).to(E4M3).t().contiguous()

        return {
            "unscale + check, float16 to float32": (6, {
                "torchamp": lambda: ops.unscale(half, full, inv_scale, found_inf),
                "torch": torch_unscale,
            }),
            "unscale + check, float32 in place": (8, {
                "torchamp": lambda: ops.unscale(full, full, inv_scale, found_inf),
                "torch": lambda: unscale_(full, found_inf, inv_scale),
            }),
            "check, float16": (2, {
                "torchamp": lambda: ops.check(half, found_inf),
                "torch": lambda: unscale_(half, found_inf, inv_scale),
            }),
            "scale, float16 to float32": (6, {
                "torchamp": lambda: ops.scale(half, full, 0.5, found_inf),
                "torch": torch_scale,
            }),
            "axpby, float16 onto float32": (10, {
                "torchamp": lambda: ops.axpby(0.5, half, 0.5, full, full, found_inf),
                "torch": torch_axpby,
            }),
            "l2norm, float32": (4, {
                "torchamp": lambda: ops.l2norm(full),
                "torch": lambda: torch.stack(torch._foreach_norm(full)).norm(),
            }),
            "copy_cast, float32 to float16": (6, {
                "torchamp": lambda: ops.copy_cast(full, half),
                "torch": lambda: torch._foreach_copy_(half, full),
            }),
            "float8_scales, float16": (2, {
                "torchamp": lambda: ops.float8_scales(half, dtype=E4M3),
                "torch": lambda: torch.stack(torch._foreach_norm(half, torch.inf)),
            }),
            "float8_cast, float16": (4, {
                "torchamp": lambda: ops.float8_cast(matrices, scales, dtype=E4M3),
                "torch": torch_float8_cast,
            }),
        }  # fmt: skip


def cases_of(workload: str, device: str) -> Iterator[tuple[str, int, Variants]]:
    """Each op, its bytes per element and its implementations. Frees each before the next."""
    for op, (num_bytes, variants) in Lists(workload, device).cases().items():
        yield op, num_bytes, variants
    for name, algorithm in ALGORITHMS.items():
        step = step_of(algorithm, WORKLOADS[workload], device)
        yield name, algorithm.bytes_per_element, {"torchamp": step}


def measure(device: str, repeats: int) -> Iterator[Row]:
    for workload, shapes in WORKLOADS.items():
        for op, num_bytes, variants in cases_of(workload, device):
            copy = copy_of(count_elements(shapes) * num_bytes, device)
            timings = time_interleaved({**variants, "copy": copy}, device, repeats)
            yield row_of(op, workload, num_bytes, timings)


def print_table(rows: list[Row]) -> None:
    for row in rows:
        mark = {name: "*" if name in row.not_queued_ahead else "" for name in row.host_ms}
        host = row.host_ms["torchamp"]
        parts = [
            f"{row.op:36} {row.workload:16}{row.torchamp_ms:9.3f} ms{mark['torchamp']}",
            f"{row.of_copy:.0%} of a copy",
            "" if host is None else f"{host:.3f} ms on the host",
            "" if row.torch_ms is None else
            f"torch {row.torch_ms:.3f} ms{mark['torch']}, {row.times_torch:.1f} times as long",
        ]  # fmt: skip
        print(", ".join(filter(None, parts)))
    if any(row.not_queued_ahead for row in rows):
        print(command_line.NOT_QUEUED_AHEAD)


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)

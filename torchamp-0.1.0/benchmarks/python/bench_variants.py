"""Times every run-time tuning parameter of torchamp's CUDA kernels against the default, and reports
which settings are faster.

The names and values are those of torchamp._C.tuning_choices(); one is changed at a time. All
settings of an op and a workload are timed round-robin, each after an uncounted call.

    python benchmarks/python/bench_variants.py [--repeats 15] [--json FILE]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import geometric_mean
from types import ModuleType
from typing import Any

import command_line
import torch
from memory import release
from step_variants import Grads, amp_step
from timing import Timing, time_interleaved
from workloads import STEP_WORKLOADS, Shapes

import torchamp
from torchamp import ops, optimizers

DEFAULT = "default"


@dataclass(frozen=True)
class Workload:
    """odd_offsets: each grad starts at an odd element of one flat buffer, as bucket views of
    DistributedDataParallel may, while masters and moments are aligned."""

    shapes: Shapes
    odd_offsets: bool = False


WORKLOADS = {
    "tiny_10000x64": Workload(STEP_WORKLOADS["tiny_10000x64"]),
    "gpt2_124m": Workload(STEP_WORKLOADS["gpt2_124m"]),
    "resnet50": Workload(STEP_WORKLOADS["resnet50"]),
    "gpt2_124m, bucket views": Workload(STEP_WORKLOADS["gpt2_124m"], odd_offsets=True),
    "resnet50, bucket views": Workload(STEP_WORKLOADS["resnet50"], odd_offsets=True),
}


@dataclass(frozen=True)
class Choice:
    """A setting other than the default."""

    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass
class Row:
    """One op on one workload with one setting: its milliseconds and the default's, with quartiles.
    times_default: time relative to the default. verdict: "faster" if its third quartile is below
    the default's first quartile, "slower" in the opposite case, else "no difference"."""

    op: str
    workload: str
    setting: str
    milliseconds: float
    quartiles: tuple[float, float]
    default_ms: float
    default_quartiles: tuple[float, float]
    times_default: float
    verdict: str


def verdict(own: Timing, default: Timing) -> str:
    if own.quartiles[1] < default.quartiles[0]:
        return "faster"
    if own.quartiles[0] > default.quartiles[1]:
        return "slower"
    return "no difference"


class Tuning:
    """The tuning parameters and a way to set them."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.default: dict[str, Any] = dict(module.tuning())
        self.choices = [
            Choice(name, value)
            for name, values in module.tuning_choices().items()
            for value in values
            if value != self.default[name]
        ]

    def choose(self, choice: Choice | None) -> None:
        """Applies a setting. None: the default."""
        chosen = {} if choice is None else {choice.name: choice.value}
        self._module.set_tuning(**{**self.default, **chosen})


def why_not(module: ModuleType) -> str:
    """The reason why nothing can be timed here; empty if it can."""
    if not torch.cuda.is_available():
        return "there is no CUDA device here, and only the CUDA kernels have tuning parameters"
    if not hasattr(module, "tuning_choices"):
        return f"torchamp {torchamp.__version__} has no tuning parameters"
    return ""


def ops_of(workload: Workload, device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each op and a call of it. Frees each op's tensors before the next."""
    grads = Grads(workload.shapes, device, workload.odd_offsets)
    found_inf, inv_scale = torch.zeros((), device=device), torch.ones((), device=device)
    yield "check", lambda: ops.check(grads.half, found_inf)
    yield "unscale", lambda: ops.unscale(grads.half, grads.single, inv_scale, found_inf)
    yield "step", amp_step(grads, optimizers.FusedAdamW).run


def measure_op(
    op: str, workload: str, run: Callable[[], object], tuning: Tuning, device: str, repeats: int
) -> list[Row]:
    settings: dict[str, Choice | None] = {DEFAULT: None}
    settings.update({str(choice): choice for choice in tuning.choices})

    def prepare(name: str) -> None:
        """Sets the tuning and makes one uncounted call, so that no plan of another setting is
        reused."""
        tuning.choose(settings[name])
        run()

    try:
        timings = time_interleaved(dict.fromkeys(settings, run), device, repeats, prepare)
    finally:
        tuning.choose(None)
    default = timings.pop(DEFAULT)
    return [row_of(op, workload, setting, timing, default) for setting, timing in timings.items()]


def row_of(op: str, workload: str, setting: str, own: Timing, default: Timing) -> Row:
    return Row(
        op,
        workload,
        setting,
        own.milliseconds,
        own.quartiles,
        default.milliseconds,
        default.quartiles,
        times_default=own.times(default),
        verdict=verdict(own, default),
    )


def measure(module: ModuleType, device: str, repeats: int) -> Iterator[Row]:
    tuning = Tuning(module)
    for name, workload in WORKLOADS.items():
        for op, run in ops_of(workload, device):
            yield from measure_op(op, name, run, tuning, device, repeats)
        release(device)


def summary(rows: list[Row]) -> str:
    """For each setting its mean relative time, and in how many cases it was faster and slower; the
    fastest setting first."""
    by_setting: dict[str, list[Row]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, []).append(row)
    lines = []
    for setting, own in by_setting.items():
        mean = geometric_mean(row.times_default for row in own)
        faster, slower = (sum(row.verdict == word for row in own) for word in ("faster", "slower"))
        lines.append((mean, f"{setting}: {mean:.3f} x the default's time, faster in {faster} and "
                            f"slower in {slower} of {len(own)}"))  # fmt: skip
    return "\n".join(line for _, line in sorted(lines))


def print_table(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.op:8} {row.workload:24} {row.setting:32} "
              f"{row.milliseconds:8.4f} ms ({row.quartiles[0]:.4f}–{row.quartiles[1]:.4f})  "
              f"default {row.default_ms:8.4f} ms ({row.default_quartiles[0]:.4f}–"
              f"{row.default_quartiles[1]:.4f})  {row.times_default:6.3f}x  "
              f"{row.verdict}")  # fmt: skip
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    if why_not(torchamp._C) and not {"-h", "--help"} & set(sys.argv):
        print(f"bench_variants: not run: {why_not(torchamp._C)}")
        sys.exit()
    command_line.run(__doc__, functools.partial(measure, torchamp._C), print_table)

"""Times several variants round-robin in one process, so that drift affects all of them equally.

On CUDA the device is kept busy until a call has queued its work, so that device time excludes host
time. Host time is reported separately.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Variants = dict[str, Callable[[], object]]

#: How long the device is kept busy, first and at most. A call that needs longer to queue its work
#: waits for the device, or launches more than the driver's queue holds.
FIRST_HOLD_MS = 1.0
LONGEST_HOLD_MS = 64.0


@dataclass
class Sample:
    """One call. host_ms: time until it returned, None on the CPU, where milliseconds is that time.
    queued_ahead: all its work was queued before the device started it."""

    milliseconds: float
    host_ms: float | None = None
    queued_ahead: bool = True


Sampler = Callable[[], Sample]


@dataclass
class Timing:
    """A variant's samples, one per round."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def milliseconds(self) -> float:
        return statistics.median(sample.milliseconds for sample in self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        times = [sample.milliseconds for sample in self.samples]
        if len(times) == 1:
            return times[0], times[0]
        first, _, third = statistics.quantiles(times, n=4, method="inclusive")
        return first, third

    @property
    def host_ms(self) -> float | None:
        times = [sample.host_ms for sample in self.samples if sample.host_ms is not None]
        return statistics.median(times) if times else None

    @property
    def queued_ahead(self) -> bool:
        return all(sample.queued_ahead for sample in self.samples)


def sample_cpu(run: Callable[[], object]) -> Sample:
    start = time.perf_counter()
    run()
    return Sample((time.perf_counter() - start) * 1e3)


@functools.cache
def cycles_per_ms() -> float:
    """Frequency of the clock that torch.cuda._sleep counts."""
    cycles = 20_000_000
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    after.synchronize()
    return cycles / before.elapsed_time(after)


class CudaClock:
    """Times a variant with events, while the device is held busy until its work is queued. If no
    hold is long enough, times it without one; its samples then have queued_ahead=False."""

    def __init__(self) -> None:
        self.hold_ms = FIRST_HOLD_MS

    def sample(self, run: Callable[[], object]) -> Sample:
        sample = self._once(run)
        while not sample.queued_ahead and self.hold_ms > 0:
            self.hold_ms = 4 * self.hold_ms if self.hold_ms < LONGEST_HOLD_MS else 0.0
            sample = self._once(run)
        return sample

    def _once(self, run: Callable[[], object]) -> Sample:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.hold_ms > 0:
            torch.cuda._sleep(int(self.hold_ms * cycles_per_ms()))
        before.record()
        start = time.perf_counter()
        run()
        host_ms = (time.perf_counter() - start) * 1e3
        after.record()
        queued_ahead = self.hold_ms > 0 and not before.query()
        after.synchronize()
        return Sample(before.elapsed_time(after), host_ms, queued_ahead)


def sampler(run: Callable[[], object], device: str) -> Sampler:
    return functools.partial(CudaClock().sample if device == "cuda" else sample_cpu, run)


def sample_in_turn(
    samplers: dict[str, Sampler],
    rounds: int,
    prepare: Callable[[str], object] = lambda name: None,
    until: float = float("inf"),
) -> dict[str, Timing]:
    """Takes one sample of each per round, after two warm-up rounds, with the garbage collector off
    as in timeit. prepare: called with the name before each sample. until: a time of
    time.monotonic() after which no round starts, except the first three."""
    timings = {name: Timing() for name in samplers}
    gc.collect()
    gc.disable()
    try:
        for number in range(-2, rounds):
            if number >= 3 and time.monotonic() > until:
                break
            for name, take in samplers.items():
                prepare(name)
                sample = take()
                if number >= 0:
                    timings[name].samples.append(sample)
    finally:
        gc.enable()
    return timings


def time_interleaved(variants: Variants, device: str, repeats: int) -> dict[str, Timing]:
    """sample_in_turn() of the variants' times on the device."""
    samplers = {name: sampler(run, device) for name, run in variants.items()}
    return sample_in_turn(samplers, repeats)

"""Timing of several variants in one process, in turn, so that a drifting machine is fair to all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch

Variants = dict[str, Callable[[], object]]


def time_once(run: Callable[[], object], device: str) -> float:
    """Milliseconds of one call; on CUDA those of the device, by events."""
    if device != "cuda":
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


def time_interleaved(variants: Variants, device: str, repeats: int) -> dict[str, float]:
    """The median milliseconds of each variant over `repeats` rounds, after two uncounted ones. As
    timeit's, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        return _time_rounds(variants, device, repeats)
    finally:
        gc.enable()


def _time_rounds(variants: Variants, device: str, repeats: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(repeats + 2):
        for name, run in variants.items():
            elapsed = time_once(run, device)
            if round_number >= 2:
                samples[name].append(elapsed)
    return {name: statistics.median(times) for name, times in samples.items()}

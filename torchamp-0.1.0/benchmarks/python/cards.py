"""Device parameters for roofline.py, from the cited sources. None was measured by this project."""

from __future__ import annotations

from dataclasses import dataclass

#: A DRAM round trip under load, in microseconds: twice the idle latency of 470 to 540 cycles that
#: pointer chasing measures on A100, H100 and RTX 4090 (Luo et al., arXiv:2402.13499).
ROUND_TRIP_US = 0.6
#: From the end of one queued kernel to the start of the next: the overhead of short kernels
#: launched back to back (NVIDIA's blog, "Getting Started with CUDA Graphs").
LAUNCH_US = 1.0
#: Fraction of the data sheet's bandwidth that a large device-to-device copy reaches, counting reads
#: and writes: 3.0 of 3.35 TB/s on H100 SXM, 4.3 of 4.8 on H200. Assumed for the other GPUs too.
COPY_SHARE = 0.9
#: Overhead of a parallel region on the CPU.
REGION_US = 5.0


@dataclass(frozen=True)
class Card:
    """A device. copy_gbps: bandwidth of a copy, counting reads and writes. launch_us: device time
    per launch. round_trip_us: memory latency of a warp; 0 for a CPU. multiprocessors: 0 for a CPU,
    which needs no tables of tensors and so launches once."""

    name: str
    copy_gbps: float
    launch_us: float = LAUNCH_US
    round_trip_us: float = ROUND_TRIP_US
    multiprocessors: int = 0


def _gpu(name: str, sheet_gbps: float, multiprocessors: int) -> Card:
    return Card(name, COPY_SHARE * sheet_gbps, multiprocessors=multiprocessors)


#: From NVIDIA's data sheets.
CARDS = {
    "h100": _gpu("H100 SXM", 3352.0, 132),
    "h200": _gpu("H200", 4800.0, 132),
    "a100": _gpu("A100 80 GB SXM", 2039.0, 108),
    "4090": _gpu("RTX 4090", 1008.0, 128),
}


def processor_card(name: str, copy_gbps: float) -> Card:
    """A CPU, where each op is one parallel region."""
    return Card(name, copy_gbps, launch_us=REGION_US, round_trip_us=0.0)

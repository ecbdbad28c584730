"""What roofline.py knows of devices. Nothing here was measured by this project."""

from __future__ import annotations

from dataclasses import dataclass

#: A DRAM round trip under load, in microseconds: twice the 470 to 540 cycles of an idle one that
#: pointer chasing finds on A100, H100 and RTX 4090 (Luo et al., arXiv:2402.13499).
ROUND_TRIP_US = 0.6
#: From one queued kernel's end to the next one's begin: what short kernels take longer than they
#: run when they are launched back to back (NVIDIA's blog, "Getting Started with CUDA Graphs").
LAUNCH_US = 1.0
#: Of the data sheet's bandwidth what a large device-to-device copy reaches, reads and writes
#: counted: 3.0 of 3.35 TB/s on H100 SXM, 4.3 of 4.8 on H200. Taken for the others as well.
COPY_SHARE = 0.9
#: A parallel region of the CPU's threads.
REGION_US = 5.0


@dataclass(frozen=True)
class Card:
    """A device. copy_gbps: what a copy reaches, reads and writes counted. launch_us: what a launch
    costs the device. round_trip_us: how long a warp waits for memory; 0 where nothing waits so.
    multiprocessors: 0 for a CPU, which needs no tables of tensors, so launches once."""

    name: str
    copy_gbps: float
    launch_us: float = LAUNCH_US
    round_trip_us: float = ROUND_TRIP_US
    multiprocessors: int = 0


def _gpu(name: str, sheet_gbps: float, multiprocessors: int) -> Card:
    return Card(name, COPY_SHARE * sheet_gbps, multiprocessors=multiprocessors)


#: By NVIDIA's data sheets.
CARDS = {
    "h100": _gpu("H100 SXM", 3352.0, 132),
    "h200": _gpu("H200", 4800.0, 132),
    "a100": _gpu("A100 80 GB SXM", 2039.0, 108),
    "4090": _gpu("RTX 4090", 1008.0, 128),
}


def processor_card(name: str, copy_gbps: float) -> Card:
    """A CPU, whose ops are one parallel region each."""
    return Card(name, copy_gbps, launch_us=REGION_US, round_trip_us=0.0)

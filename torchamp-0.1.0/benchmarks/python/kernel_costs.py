"""Memory traffic and latency of each kernel in csrc/cuda."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Union

from cards import Card
from workloads import Shapes, count_elements, element_counts

WARP = 32
BLOCK = 128


#: Elements of a warp's unit, and the total number of elements from which on units are large.
UNIT, LARGE_UNIT, LARGE_PLAN = 2048, 8192, 1 << 26


@dataclass(frozen=True)
class Kernel:
    """A kernel over a table of tensors.

    bytes_per_element: read and written. tensors: how many fit in a launch's parameter. stays: a
    longer table is kept on the device, at the cost of one more dependent read per entry. vector:
    elements that a thread has in flight. loads_before: dependent reads before the first element.
    unit: elements per team of threads; 0: by the total size. warps: resident per multiprocessor,
    limited by registers. counted: tensors that the last block processes per iteration, each with a
    read and a dependent write; 0 if it processes none.
    """

    bytes_per_element: int
    tensors: int
    vector: int
    stays: bool = False
    loads_before: int = 0
    unit: int = 0
    team: int = WARP
    warps: int = 32
    counted: int = 0

    def launches(self, shapes: Shapes, card: Card) -> int:
        once = card.multiprocessors == 0 or self.stays
        return 1 if once else ceil(len(shapes) / self.tensors)

    def bytes(self, shapes: Shapes) -> int:
        return self.bytes_per_element * count_elements(shapes)

    def unit_of(self, shapes: Shapes) -> int:
        return self.unit or (UNIT if count_elements(shapes) < LARGE_PLAN else LARGE_UNIT)

    def units(self, shapes: Shapes) -> int:
        unit = self.unit_of(shapes)
        return sum(ceil(elements / unit) for elements in element_counts(shapes))

    def unit_round_trips(self, shapes: Shapes) -> int:
        """Round trips of the longest unit: initial reads, one per iteration, and the last write."""
        longest = min(self.unit_of(shapes), max(element_counts(shapes)))
        entry = 1 if self.stays and len(shapes) > self.tensors else 0
        return entry + self.loads_before + ceil(longest / (self.team * self.vector)) + 1

    def ending_round_trips(self, shapes: Shapes) -> int:
        return 2 * ceil(len(shapes) / self.counted) if self.counted else 0

    def milliseconds(self, shapes: Shapes, card: Card) -> float:
        """The larger of the bandwidth and latency bounds, plus the launch overhead and the time of
        one unit per launch to fill and drain the device."""
        unit_us = self.unit_round_trips(shapes) * card.round_trip_us
        teams = card.multiprocessors * self.warps * WARP // self.team
        waiting_us = self.units(shapes) * unit_us / teams if teams else 0.0
        moving_us = self.bytes(shapes) / card.copy_gbps / 1e3
        launching_us = self.launches(shapes, card) * (card.launch_us + unit_us)
        ending_us = self.ending_round_trips(shapes) * card.round_trip_us
        return (max(moving_us, waiting_us) + launching_us + ending_us) / 1e3


@dataclass(frozen=True)
class OneBlock:
    """A kernel of one block that computes a few scalars."""

    def launches(self, shapes: Shapes, card: Card) -> int:
        return 1

    def bytes(self, shapes: Shapes) -> int:
        return 0

    def milliseconds(self, shapes: Shapes, card: Card) -> float:
        return (card.launch_us + 3 * card.round_trip_us) / 1e3


Kernels = tuple[Union[Kernel, OneBlock], ...]


def _step(bytes_per_element: int, tensors: int, vector: int = 8, counted: int = 512) -> Kernel:
    """First reads the skip flag and the step count. Its registers allow sixteen resident warps."""
    return Kernel(bytes_per_element, tensors, vector, True, 2, warps=16, counted=counted)


_UNSCALED = Kernel(6, 1016, 16, loads_before=1, counted=16384)
_CHECKED = Kernel(2, 1356, 32, stays=True, counted=16384)
_ADAM = _step(28, 583)
_ADAM_IN_16_BITS = Kernel(20, 581, 8, False, 2, warps=16, counted=512)
_CLIP = OneBlock()
_L2NORM = (Kernel(4, 1362, 16, unit=32768, team=BLOCK), OneBlock())

#: By bench_ops.py's names; grads and models are float16.
OPS: dict[str, Kernels] = {
    "unscale + check, float16 to float32": (Kernel(6, 1016, 16, loads_before=1),),
    "unscale + check, float32 in place": (Kernel(8, 1016, 8, loads_before=1),),
    "check, float16": (Kernel(2, 1356, 32, stays=True),),
    "scale, float16 to float32": (Kernel(6, 1022, 16),),
    "axpby, float16 onto float32": (Kernel(10, 817, 8),),
    "l2norm, float32": _L2NORM,
    "copy_cast, float32 to float16": (Kernel(6, 1023, 16),),
}

#: The step kernel of each algorithm: 2 + 8 + 2 bytes for grad, master and model, 8 for each state.
#: LAMB's first pass writes the update as a state, which the second pass reads as its grad.
STEPS: dict[str, Kernels] = {
    "step, Adam": (_ADAM,),
    "step, AMSGrad": (_step(36, 510, vector=4),),
    "step, SGD": (_step(12, 816),),
    "step, momentum": (_step(20, 680),),
    "step, Adagrad": (_step(20, 680),),
    "step, NovoGrad": (_step(20, 680, counted=128),),
    "step, LAMB's update": (_step(34, 510, vector=4),),
    "step, LAMB's application": (_step(14, 816),),
    "clip": (_CLIP,),
}

#: The kernels after a backward, by bench_step.py's names.
ITERATIONS: dict[str, Kernels] = {
    "one pass": (_CHECKED, _ADAM),
    "one pass, clipped": (_CHECKED, _CLIP, _ADAM),
    "one pass, bfloat16 moments": (_CHECKED, _ADAM_IN_16_BITS),
    "master grads materialized": (_UNSCALED, _step(30, 583)),
    "three passes, as apex": (_UNSCALED, _ADAM, *OPS["copy_cast, float32 to float16"]),
    "float32, FusedAdamW": (_step(28, 583),),
}


def total_ms(kernels: Kernels, shapes: Shapes, card: Card) -> float:
    return sum(kernel.milliseconds(shapes, card) for kernel in kernels)


def total_bytes(kernels: Kernels, shapes: Shapes) -> int:
    return sum(kernel.bytes(shapes) for kernel in kernels)


def total_launches(kernels: Kernels, shapes: Shapes, card: Card) -> int:
    return sum(kernel.launches(shapes, card) for kernel in kernels)

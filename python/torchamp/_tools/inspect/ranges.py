"""The exponents of tensors, and what of them 16-bit formats hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch

from torchamp import ops


@dataclasses.dataclass(frozen=True)
class Format:
    """A floating format, by binary exponents: 2**e is its smallest or largest power of two."""

    name: str
    subnormal: int  #: of the smallest number above 0
    normal: int  #: of the smallest number of full precision
    top: int  #: of the largest finite numbers
    spacing: int  #: from 1 to the next number

    @property
    def largest(self) -> float:
        return (2.0 - 2.0**self.spacing) * 2.0**self.top


FLOAT16 = Format("float16", subnormal=-24, normal=-14, top=15, spacing=-10)
BFLOAT16 = Format("bfloat16", subnormal=-133, normal=-126, top=127, spacing=-7)
TF32 = Format("TF32", subnormal=-136, normal=-126, top=127, spacing=-10)
FORMATS = (FLOAT16, BFLOAT16)

_RULE = ops.ScaleRule()
#: Exponents of the loss scales that amp may choose.
SCALES = range(int(math.log2(_RULE.min_scale)), int(math.log2(_RULE.max_scale)) + 1)

#: From this share of a tensor's nonzero elements on, its underflow is a finding.
MANY = 0.5

_LOWEST = -149  # the exponent of float32's smallest number
_HIGHEST = 128


@dataclasses.dataclass
class Range:
    """How many elements of some tensors have which exponent: `floor(log2(|x|))`."""

    counts: torch.Tensor  #: int64, on the CPU, of _LOWEST to _HIGHEST
    zeros: int = 0
    infs: int = 0
    nans: int = 0
    max_abs: float = 0.0  #: of the finite elements

    def __add__(self, other: Range) -> Range:
        return Range(
            self.counts + other.counts,
            self.zeros + other.zeros,
            self.infs + other.infs,
            self.nans + other.nans,
            max(self.max_abs, other.max_abs),
        )

    @property
    def nonzero(self) -> int:
        """How many elements are finite, and not 0."""
        return int(self.counts.sum())

    @property
    def exponents(self) -> dict[int, int]:
        """The number of elements by exponent, without those of none."""
        found = self.counts.nonzero().flatten().tolist()
        return {i + _LOWEST: int(self.counts[i]) for i in found}

    @property
    def norm(self) -> float:
        """The norm of the elements, each taken for the power of two of its exponent."""
        powers = 2.0 ** torch.arange(_LOWEST, _HIGHEST + 1, dtype=torch.float64)
        return float((self.counts * powers.square()).sum().sqrt())

    def share_lost(self, format: Format, scale: int = 0) -> float:
        """The share of the nonzero elements that, times 2**scale, are rounded to 0 in `format`."""
        index = min(max(format.subnormal - 1 - scale - _LOWEST, 0), len(self.counts))
        return int(self.counts[:index].sum()) / self.nonzero if self.nonzero else 0.0

    def overflows(self, format: Format, scale: int = 0) -> bool:
        """Whether 2**scale times an element is beyond the largest of `format`."""
        return self.max_abs * 2.0**scale > format.largest


def no_range() -> Range:
    return Range(torch.zeros(_HIGHEST - _LOWEST + 1, dtype=torch.int64))


def range_of(tensor: torch.Tensor) -> Range:
    """The range of a floating tensor. Waits for the device."""
    values = tensor.detach().float().abs().flatten()
    finite = values[values.isfinite()]
    nonzero = finite[finite > 0]
    exponents = torch.frexp(nonzero).exponent.long() - 1 - _LOWEST
    nans = int(values.isnan().sum())
    return Range(
        torch.bincount(exponents, minlength=_HIGHEST - _LOWEST + 1).cpu(),
        zeros=finite.numel() - nonzero.numel(),
        infs=values.numel() - finite.numel() - nans,
        nans=nans,
        max_abs=float(finite.max()) if finite.numel() else 0.0,
    )


def sum_of(ranges: Iterable[Range]) -> Range:
    return sum(ranges, no_range())

"""Random calls of the ops on views that chance lays over each other.

The tensors of a position are views of one arena: the same view, views of other places, or views
that overlap in part. A call writes what the reference does, and no byte beside its outputs, or it
raises and writes nothing. Where writing an element would change another one that the call reads or
writes, both are right, and of strides whose overlap ATen leaves open any result; elsewhere it may
not raise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from reference import ops as reference
from tensors import DTYPES, assert_near, assert_same

from torchamp import ops

BYTES = 1024
SIZES = [(), (1,), (3,), (8,), (2, 3), (3, 3), (2, 2, 2), (0, 3)]
FACTORS = [1.0, 0.5, -2.0, 2.0**-16, 1 / 3, 3e5]
NOT_FINITE = [float("inf"), float("-inf"), float("nan")]


@dataclass(frozen=True)
class View:
    """Where a tensor lies in its arena; strides and offset in elements."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, arena: torch.Tensor) -> torch.Tensor:
        return arena.view(self.dtype).as_strided(self.sizes, self.strides, self.offset)

    def elements(self) -> list[int]:
        """Each one's first byte."""
        axes = [[k * stride for k in range(size)] for size, stride in zip(self.sizes, self.strides)]
        itemsize = self.dtype.itemsize
        return [(self.offset + sum(index)) * itemsize for index in itertools.product(*axes)]

    def bytes(self) -> set[int]:
        return {at + k for at in self.elements() for k in range(self.dtype.itemsize)}

    def overlaps_itself(self) -> bool:
        return len(self.bytes()) < len(self.elements()) * self.dtype.itemsize

    def is_dense(self) -> bool:
        first, size = self.offset * self.dtype.itemsize, len(self.elements()) * self.dtype.itemsize
        return self.bytes() == set(range(first, first + size))

    def repeats_an_axis(self) -> bool:
        return any(size > 1 and stride == 0 for size, stride in zip(self.sizes, self.strides))

    def is_in_the_way_of(self, output: View) -> bool:
        """Whether writing an element of `output` changes another element of this."""
        is_same = self.dtype == output.dtype and self.elements() == output.elements()
        return not is_same and bool(self.bytes() & output.bytes())


@dataclass(frozen=True)
class Op:
    """How an op is called, and what it is compared with."""

    inputs: int
    outputs: int
    #: Of the lists, flags and factors: the op's, and the reference's, which returns what is bad.
    call: Callable
    expected: Callable
    is_exact: bool = True


def _unscale(accumulate: bool) -> Op:
    def call(lists, found, each, factors):
        ops.unscale(*lists, torch.tensor(factors[0]), found, accumulate, each)

    def expected(lists, factors):
        return reference.unscale(*lists, torch.tensor(factors[0]), accumulate)

    return Op(1, 1, call, expected, is_exact=not accumulate)


OPS = {
    "scale": Op(
        1,
        1,
        lambda lists, found, each, factors: ops.scale(*lists, factors[0], found, each),
        lambda lists, factors: reference.scale(*lists, factors[0]),
    ),
    "unscale": _unscale(accumulate=False),
    "accumulate": _unscale(accumulate=True),
    "axpby": Op(
        2,
        1,
        lambda lists, found, each, factors: ops.axpby(
            factors[0], lists[0], factors[1], lists[1], lists[2], found, ops.Check.BOTH, each
        ),
        lambda lists, factors: reference.axpby(
            factors[0], lists[0], factors[1], lists[1], lists[2], True, True
        ),
        is_exact=False,
    ),
    "copy_cast": Op(
        1,
        1,
        lambda lists, found, each, factors: ops.copy_cast(*lists),
        lambda lists, factors: reference.scale(*lists, 1.0),
    ),
    "check": Op(
        1,
        0,
        lambda lists, found, each, factors: ops.check(*lists, found, each),
        lambda lists, factors: [t is not None and reference.is_bad(t) for t in lists[0]],
    ),
}


class Call:
    """A call of an op that a seed draws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name = self.chance.choice(list(OPS))
        self.op = OPS[self.name]
        self.factors = self.chance.choices(FACTORS, k=2)
        self.positions = [self._position() for _ in range(self.chance.randint(1, 3))]
        self.arenas = [self._arena(views, seed) for views in self.positions]

    def _position(self) -> list[View | None]:
        """The views of one position: one a list."""
        sizes = self.chance.choice(SIZES)
        views: list[View | None] = []
        for number in range(self.op.inputs + self.op.outputs):
            known = [view for view in views if view is not None]
            if known and self.chance.random() < 0.3:
                views.append(self.chance.choice(known))
            elif self.chance.random() < 0.05:
                views.append(None)
            else:
                views.append(self._view(sizes, number))
        return views

    def _view(self, sizes: tuple[int, ...], number: int) -> View:
        dtype = self.chance.choice(DTYPES)
        place = number * 256 if self.chance.random() < 0.6 else 8 * self.chance.randint(0, 9)
        offset = place // dtype.itemsize + self.chance.choice([0, 0, 0, 1, 2])
        return View(dtype, sizes, self._strides(sizes), offset)

    def _strides(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        dense = [1] * len(sizes)
        for axis in reversed(range(len(sizes) - 1)):
            dense[axis] = dense[axis + 1] * max(sizes[axis + 1], 1)
        kind = self.chance.choices(["dense", "turned", "wide", "sliding", "same"], [6, 2, 2, 1, 1])
        return {
            "dense": tuple(dense),
            "turned": _turned(sizes),
            "wide": tuple(2 * stride for stride in dense),
            "sliding": (1,) * len(sizes),
            "same": (0,) * len(sizes),
        }[kind[0]]

    def _arena(self, views: list[View | None], seed: int) -> torch.Tensor:
        arena = torch.zeros(BYTES, dtype=torch.uint8)
        numbers = torch.Generator().manual_seed(seed)
        for view in views:
            if view is None:
                continue
            values = torch.randn(view.sizes, generator=numbers)
            if values.numel() and self.chance.random() < 0.1:
                values.view(-1)[self.chance.randrange(values.numel())] = self.chance.choice(
                    NOT_FINITE
                )
            view.of(arena).copy_(values) if not view.overlaps_itself() else None
        return arena

    def lists(self) -> list[list[torch.Tensor | None]]:
        return [
            [view and view.of(arena) for view, arena in zip(views, self.arenas)]
            for views in zip(*self.positions)
        ]

    def hazards(self) -> list[bool]:
        """For each output that is in the way of itself or of another tensor whether ATen knows."""
        known = []
        for views in self.positions:
            for output in filter(None, views[self.op.inputs :]):
                if output.overlaps_itself():
                    known.append(output.repeats_an_axis())
                for other in filter(None, views):
                    if other.is_in_the_way_of(output):
                        known.append(other.is_dense() and output.is_dense())
        return known

    def failure(self) -> str:
        """What went wrong; empty if nothing did."""
        lists = self.lists()
        before = [arena.clone() for arena in self.arenas]
        hazards = self.hazards()
        copies = [[None if t is None else t.clone() for t in tensors] for tensors in lists]
        found, each = torch.zeros(()), torch.zeros(len(self.positions), dtype=torch.uint8)
        try:
            self.op.call(lists, found, each, self.factors)
        except (RuntimeError, TypeError) as error:
            if not hazards:
                return f"raised without a reason: {error}"
            same = all(map(torch.equal, self.arenas, before))
            return "" if same and not found and not each.any() else "raised, and had written"
        if not all(hazards):
            return ""
        bad = self.op.expected(copies, self.factors)
        return self._difference(lists, copies, before) or self._flags_differ(bad, found, each)

    def _difference(self, lists: list, copies: list, before: list) -> str:
        outputs = slice(self.op.inputs, None)
        for got, wanted in zip(lists[outputs], copies[outputs]):
            try:
                self._compare(got, wanted, copies)
            except AssertionError as error:
                return f"{'overlapping views: ' * bool(self.hazards())}{error}"
        for views, arena, was in zip(self.positions, self.arenas, before):
            written = set().union(*(view.bytes() for view in views[outputs] if view is not None))
            kept = [at for at in range(BYTES) if at not in written]
            if not torch.equal(arena[kept], was[kept]):
                return "a byte beside the outputs was written"
        return ""

    def _compare(self, got: list, wanted: list, copies: list) -> None:
        if self.op.is_exact:
            return assert_same(got, wanted)
        finite = [t.double().nan_to_num(0, 0, 0) for t in sum(copies, []) if t is not None]
        largest = max((t.abs().max().item() for t in finite if t.numel()), default=0.0)
        pairs = [_without_infinite(*pair) for pair in zip(got, wanted)]
        got, wanted = ([pair[i] for pair in pairs] for i in (0, 1))
        assert_near(got, wanted, largest * (1 + sum(map(abs, self.factors))))

    def _flags_differ(self, bad: list, found: torch.Tensor, each: torch.Tensor) -> str:
        if self.name == "copy_cast":
            return ""
        is_right = each.tolist() == bad and bool(found) == any(bad)
        return "" if is_right else f"flags {each.tolist()}, {found} for {bad}"

    def __str__(self) -> str:
        return "\n".join([f"{self.name} {self.factors}", *map(str, self.positions)])


def _without_infinite(got: Any, wanted: Any) -> tuple[Any, Any]:
    """Both, with 0 where neither is finite: a product that overflows may make inf or nan."""
    if got is None or wanted is None:
        return got, wanted
    infinite = ~(got.isfinite() | wanted.isfinite())
    return got.masked_fill(infinite, 0), wanted.masked_fill(infinite, 0)


def _turned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in sizes:
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(strides)

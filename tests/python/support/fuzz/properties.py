"""What must hold of whatever a seed draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from languages.draw import LanguagesDraw, OverflowingDraw
from languages.runs import differences, not_finite
from mirror.compare import failure

from fuzz.draw import Draw
from fuzz.ops import Call
from fuzz.scaler import Loop

#: How many are tried at once.
BATCH = 50


@dataclass(frozen=True)
class Property:
    #: By a seed.
    drawn: Callable[[int], Any]
    #: What is wrong with each of these; "": nothing.
    failures: Callable[[list], Iterable[str]]

    def found(self, seeds: range) -> Iterator[tuple[int, str]]:
        """The seeds of what is wrong, and what that is."""
        for first in range(seeds.start, seeds.stop, BATCH):
            batch = range(first, min(first + BATCH, seeds.stop))
            told = zip(batch, self.failures([self.drawn(seed) for seed in batch]))
            yield from ((seed, what) for seed, what in told if what)


def failures_of_each(drawn: list) -> Iterator[str]:
    return (each.failure() for each in drawn)


PROPERTIES = {
    #: A program does by torchamp what it does by the mirror,
    "mirror": Property(lambda seed: Draw(seed).program(), lambda each: map(failure, each)),
    #: and in C++ what it does in Python, bit for bit.
    "languages": Property(lambda seed: LanguagesDraw(seed).program(), differences),
    #: Nothing that training keeps becomes infinite or NaN, in C++.
    "finite": Property(lambda seed: OverflowingDraw(seed).program(), not_finite),
    #: A loop with a GradScaler trains as one without a scale.
    "grad_scaler": Property(Loop, failures_of_each),
    #: The ops do what the reference does.
    "ops": Property(Call, failures_of_each),
}


def check(name: str, first: int, count: int) -> None:
    """Raises AssertionError if the property does not hold of one of so many seeds."""
    for seed, what in PROPERTIES[name].found(range(first, first + count)):
        replay = f"PYTHONPATH=tests/python/support python -m fuzz {name} --seed {seed} --shrink"
        raise AssertionError(f"seed {seed}: {what}\nrun `{replay}`")

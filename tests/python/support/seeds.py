"""Programs by seeds: what is wrong with any, and smaller ones that are wrong still."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz_events import Event, Program
from mirror_state import Undetermined

#: How many programs are tried at once.
BATCH = 50


@dataclasses.dataclass(frozen=True)
class Seeds:
    """The programs that `file` draws, and tells of each what is wrong; "": nothing."""

    file: str
    drawn: Callable[[int], Program]
    failures: Callable[[list[Program]], Iterator[str]]

    def found(self, seeds: range) -> Iterator[tuple[int, str]]:
        """The seeds whose programs are wrong, and in what."""
        for first in range(seeds.start, seeds.stop, BATCH):
            batch = range(first, min(first + BATCH, seeds.stop))
            told = zip(batch, self.failures([self.drawn(seed) for seed in batch]))
            yield from ((seed, what) for seed, what in told if what)

    def check(self, first: int, count: int) -> None:
        """Raises AssertionError if one of so many is wrong."""
        for seed, what in self.found(range(first, first + count)):
            replay = f"python tests/python/support/{Path(self.file).name} --seed {seed} --shrink"
            raise AssertionError(f"seed {seed}: {what}\nrun `{replay}`")

    def main(self, doc: str) -> None:
        """The command line: seed, count and shrink; the first line of `doc` describes it."""
        parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--count", type=int, default=1)
        parser.add_argument("--shrink", action="store_true")
        args = parser.parse_args()
        if args.count == 1:
            print(self.drawn(args.seed))
        failed = []
        for seed, what in self.found(range(args.seed, args.seed + args.count)):
            failed.append(seed)
            program = self.drawn(seed)
            if args.shrink:
                program = shrunk(program, self.is_bad)
                (what,) = self.failures([program])
            print(f"# seed {seed}: {what}\n{program}\n", flush=True)
        print(f"{args.count} programs, {len(failed)} wrong: {failed}")
        raise SystemExit(bool(failed))

    def is_bad(self, program: Program) -> bool:
        return any(self.failures([program]))


def smaller(program: Program) -> Iterator[Program]:
    """Programs with fewer events, simpler events, or a simpler setup; the smallest first."""
    yield from without_events(program)
    yield from with_simpler_events(program)
    yield from with_simpler_setup(program)


def without_events(program: Program) -> Iterator[Program]:
    events = program.events
    for size in (8, 4, 2, 1):
        for i in range(0, len(events), size):
            yield dataclasses.replace(program, events=events[:i] + events[i + size :])


def with_simpler_events(program: Program) -> Iterator[Program]:
    for i, event in enumerate(program.events):
        for args in simpler_args(event.args):
            events = (*program.events[:i], Event(event.name, args), *program.events[i + 1 :])
            yield dataclasses.replace(program, events=events)


def simpler_args(args: dict) -> Iterator[dict]:
    """Without an option, or with a shorter list."""
    for name, value in args.items():
        if isinstance(value, (bool, str)) or name in ("inf_in", "masters_of", "closure_of"):
            yield {key: other for key, other in args.items() if key != name}
        for i in range(len(value) if isinstance(value, list) else 0):
            yield {**args, name: value[:i] + value[i + 1 :]}


def with_simpler_setup(program: Program) -> Iterator[Program]:
    setup = program.setup
    for name in setup.overrides:
        others = {key: value for key, value in setup.overrides.items() if key != name}
        yield dataclasses.replace(program, setup=dataclasses.replace(setup, overrides=others))
    for i, recipe in enumerate(setup.optimizers):
        for name in set(recipe.options) - {"lr"}:
            others = {key: value for key, value in recipe.options.items() if key != name}
            simpler = dataclasses.replace(recipe, options=others)
            recipes = (*setup.optimizers[:i], simpler, *setup.optimizers[i + 1 :])
            yield dataclasses.replace(program, setup=dataclasses.replace(setup, optimizers=recipes))


#: Of what is no program any more.
NO_PROGRAM = (AttributeError, IndexError, KeyError, TypeError, ValueError, Undetermined)


def shrunk(program: Program, is_bad: Callable[[Program], bool]) -> Program:
    """A program that is bad still, and no smaller one is."""
    for candidate in smaller(program):
        try:
            is_smaller_bad = is_bad(candidate)
        except NO_PROGRAM:
            continue
        if is_smaller_bad:
            return shrunk(candidate, is_bad)
    return program

"""Random training programs by torchamp, against a mirror in plain PyTorch.

python tests/python/support/fuzz_programs.py
    --seed N    prints that program, and what differs if any does
    --count M   tries the M programs from there
    --shrink    makes one that differs small
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from fuzz_draw import drawn_program
from fuzz_events import Event, Program
from fuzz_run import failure
from mirror_state import Undetermined
from seed_arguments import seed_arguments


def fails(program: Program) -> bool:
    """Whether it does so as the rule determines."""
    try:
        return bool(failure(program))
    except Undetermined:
        return False


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


def shrunk(program: Program, is_bad: Callable[[Program], bool] = fails) -> Program:
    """A program that is bad still, and no smaller one is."""
    for candidate in smaller(program):
        try:
            is_smaller_bad = is_bad(candidate)
        except (IndexError, KeyError, TypeError, AttributeError):  # no program any more
            continue
        if is_smaller_bad:
            return shrunk(candidate, is_bad)
    return program


def tell(seed: int, shrinks: bool) -> bool:
    """Prints the program of a seed if it differs; returns whether it does."""
    program = drawn_program(seed)
    found = failure(program)
    if found and shrinks:
        program = shrunk(program)
        found = failure(program)
    if found:
        print(f"# seed {seed}: {found}\n{program}\n", flush=True)
    return bool(found)


def main() -> None:
    args = seed_arguments(__doc__)
    if args.count == 1:
        print(drawn_program(args.seed))
    failed = [seed for seed in range(args.seed, args.seed + args.count) if tell(seed, args.shrink)]
    print(f"{args.count} programs, {len(failed)} differ: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

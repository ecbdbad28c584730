"""Smaller programs that are wrong still."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from mirror.state import Undetermined

from fuzz.events import Event, Program


def smaller(program: Any) -> Iterator[Program]:
    """With fewer events, simpler events, or a simpler setup, the smallest first. None of what is no
    program."""
    if isinstance(program, Program):
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

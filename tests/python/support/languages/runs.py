"""Runs programs in C++ and in Python, and tells what is wrong with what they see after each
event."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fuzz.events import Event, Program, Recipe
from fuzz.run import Different, Run

from torchamp import amp

ROOT = Path(__file__).parents[4]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "tests" / "languages" / "languages"

#: A folder whose files are in memory alone, if there is one.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

#: Which values a program sees that training keeps.
KEPT = ("params.", "masters.", "optimizers.")

#: What can be seen after an event, by name: numbers as text.
Seen = dict[str, str]


def lines(program: Program) -> list[str]:
    """The setup and each event, as C++ reads them."""
    return [line(event) for event in (Event("setup", vars(program.setup)), *program.events)]


def line(event: Event) -> str:
    given = dict(event.args)
    recipes = [recipe_line(recipe) for recipe in given.pop("optimizers", ())]
    if "overrides" in given:
        given.update({"num_losses": 1, **given.pop("overrides")})
    return ";".join([f"{event.name} {words(given)}", *recipes])


def recipe_line(recipe: Recipe) -> str:
    groups = "|".join(map(word, recipe.groups))
    return words({"kind": recipe.kind, "groups": groups, **recipe.options})


def words(args: dict[str, Any]) -> str:
    return " ".join(f"{key}={word(value)}" for key, value in args.items() if value is not None)


def word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(word, value))
    return str(int(value) if isinstance(value, bool) else value)


def in_cpp(programs: Sequence[Program]) -> list[list[Seen]]:
    """What C++ sees after the setup and each event of each. If it crashes it has "crashed" after
    the event at which it did, and has seen no later one."""
    seen: list[list[Seen]] = []
    while len(seen) < len(programs):
        seen += followed(programs[len(seen) :])
    return seen


def followed(programs: Sequence[Program]) -> list[list[Seen]]:
    """The same, up to the program that crashes."""
    if not PROGRAM.is_file():
        raise FileNotFoundError(f"expected {PROGRAM} to be there: run `make test`")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        done = subprocess.run(
            [PROGRAM],
            input="".join(f"{event}\n" for program in programs for event in lines(program)),
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
    seen = [parsed(events) for events in done.stdout.split("program\n")[1:]]
    if done.returncode != 0:
        seen[-1][-1] = {"crashed": f" {done.returncode}"}
    return seen


def parsed(events: str) -> list[Seen]:
    """What was printed after each event."""
    return [
        dict(line.partition(":")[::2] for line in printed.splitlines())
        for printed in events.split("after\n")[1:]
    ]


def in_python(program: Program) -> list[Seen]:
    """The same in Python."""
    torch.manual_seed(3)
    run = Run(program.setup)
    try:
        return [seen(run), *(after(run, event) for event in program.events)]
    finally:
        run.close()


def after(run: Run, event: Event) -> Seen:
    """What can be seen after the event: what it has returned, and what it has done."""
    try:
        found = event.by(run)
        told = {f"found.{i}": each for i, each in found.items()} if event.name == "look" else {}
        if event.name in ("backward", "clip_norm"):
            told["found"] = found
        first = {name: text(tensor) for name, tensor in told.items() if tensor is not None}
    except (Different, KeyError, RuntimeError, ValueError):
        first = {"raised": ""}
    return {**first, **seen(run)}


def seen(run: Run) -> Seen:
    shown = {f"scalers.{i}": numbers(s.state()) for i, s in enumerate(run.amp.loss_scalers)}
    in_float32 = run.model.state_dict()
    tensors = {f"buffers.{name}": buffer for name, buffer in run.model.named_buffers()}
    for name, param in run.model.named_parameters():
        tensors[f"params.{name}"] = param
        tensors[f"masters.{name}"] = in_float32[name]
        tensors[f"grads.{name}"] = param.grad
        for i, optimizer in enumerate(run.optimizers):
            for key, state in optimizer.state.get(param, {}).items():
                tensors[f"optimizers.{i}.{name}.{key}"] = state
    for i, optimizer in enumerate(run.optimizers):
        known = amp.telemetry(optimizer)
        stepped = -1 if known.stepped is None else known.stepped
        counts = [known.steps, known.skipped_steps, stepped]
        shown[f"optimizers.{i}.telemetry"] = numbers([*counts, *known.loss_scales])
    tensors_seen = {name: text(tensor) for name, tensor in tensors.items() if tensor is not None}
    return {**shown, **tensors_seen}


def text(tensor: Any) -> str:
    return numbers(torch.as_tensor(tensor).flatten().tolist())


def numbers(values: Sequence[float]) -> str:
    return " %.17g" * len(values) % tuple(values)


def difference(program: Program, cpp: list[Seen], python: list[Seen]) -> str:
    """The first event after which the two differ, and in what; empty if they never do."""
    events = ["setup", *map(str, program.events)]
    for i, (event, one, other) in enumerate(zip(events, cpp, python)):
        names = [
            f"{name} is{one.get(name, ' none')} in C++ and{other.get(name, ' none')} in Python"
            for name in {**one, **other}
            if one.get(name, "none") != other.get(name, "none")
        ]
        if "crashed" in one:
            return f"after event {i}, {event}: C++ crashed with{one['crashed']}"
        if names:
            return f"after event {i}, {event}: {'; '.join(names[:3])}; {len(names)} in all"
    assert len(cpp) == len(python) == len(events)
    return ""


def differences(programs: Sequence[Program]) -> Iterator[str]:
    """Of each program; empty if there is none."""
    for program, cpp in zip(programs, in_cpp(programs)):
        yield difference(program, cpp, in_python(program))


def not_finite(programs: Sequence[Program]) -> Iterator[str]:
    """Of each program, what training keeps in C++ that is not; empty if all is."""
    for program, seen in zip(programs, in_cpp(programs)):
        told = zip(("setup", *program.events), map(not_finite_in, seen))
        yield next((f"after {event}: {what}" for event, what in told if what), "")


def not_finite_in(seen: Seen) -> str:
    """The first value that is not; empty if all are."""
    for name, value in seen.items():
        is_kept = name.startswith(KEPT) and not name.endswith(".telemetry")
        if is_kept and not all(math.isfinite(float(number)) for number in value.split()):
            return f"{name} is{value}"
    return seen.get("crashed", "")

"""Runs programs in C++ and in Python, and tells what is wrong with what they see after each
event."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fuzz.events import Event, Program, Recipe

from languages.python_run import LanguagesRun
from torchamp import amp

ROOT = Path(__file__).parents[4]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "tests" / "languages" / "languages"

#: A folder whose files are in memory alone, if there is one.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

#: Which values a program sees that training keeps.
KEPT = ("params.", "masters.", "optimizers.")

#: What can be seen after an event, by name: numbers as text; "raised": the error's type and words;
#: "warned.0": the words of a warning.
Seen = dict[str, str]

#: What C++ says otherwise than Python, and Python's words, with the groups of C++'s.
OTHER_WORDS = {
    r"RuntimeError: add_param_group: expected parameters that are in no group yet, got one of "
    r"sizes \[.*\] that the optimizer steps already": (
        "ValueError: some parameters appear in more than one parameter group"
    ),
    r"ValueError: scale_loss: expected optimizers\[1\] to come from the initialize of "
    r"optimizers\[0\], got one from another initialize": (
        "RuntimeError: scale_loss: expected optimizers[1] to come from the same initialize as the "
        "others, got one from another"
    ),
    r"(.* got one of (O.); initialize at \2 to load it)": (
        r"\1, or load its state dicts by torch.load"
    ),
    r"(RuntimeError: one of the variables .* operation: )\[CPU(\w+)Type (.*)": (
        r"\1[torch.\2Tensor \3"
    ),
}
#: What C++ must call Optimizer::step and Optimizer::add_param_group.
WITHOUT_CLASS = re.compile(r"(?<!::)\b(step|add_param_group): ")


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
        dict(in_pythons_words(*line.partition(":")[::2]) for line in printed.splitlines())
        for printed in events.split("after\n")[1:]
    ]


def in_pythons_words(name: str, value: str) -> tuple[str, str]:
    """What C++ tells, as Python tells it: without an optimizer's class, and with a point."""
    if not name.startswith(("raised", "warned")):
        return name, value
    sentence = WITHOUT_CLASS.sub(r"\1 without its class: ", value[1:]).replace("Optimizer::", "")
    for words, others in OTHER_WORDS.items():
        sentence = re.sub(f"^{words}$", others, sentence)
    return name, sentence.replace("amp::", "amp.")


def in_python(program: Program) -> list[Seen]:
    """The same in Python."""
    torch.manual_seed(3)
    run = LanguagesRun(program.setup)
    try:
        return [after(run, event) for event in (Event("begin"), *program.events)]
    finally:
        run.close()


def after(run: LanguagesRun, event: Event) -> Seen:
    """What can be seen after the event: what it has returned, or how it has failed, what it has
    warned of, and what it has done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        first = followed_by(run, event)
    warned = {f"warned.{i}": str(warning.message) for i, warning in enumerate(caught)}
    return {**first, **warned, **seen(run)}


def followed_by(run: LanguagesRun, event: Event) -> Seen:
    try:
        found = event.by(run)
        told = {f"found.{i}": each for i, each in found.items()} if event.name == "look" else {}
        if event.name in ("backward", "clip_norm"):
            told["found"] = found
        return {name: text(tensor) for name, tensor in told.items() if tensor is not None}
    except Exception as error:
        return {"raised": in_cpps_numbers(f"{type(error).__name__}: {error}".replace("\n", " "))}


def in_cpps_numbers(sentence: str) -> str:
    """C++ writes 1.0 as 1."""
    return re.sub(r"(?<=\d)\.0(?!\d)", "", sentence)


def seen(run: LanguagesRun) -> Seen:
    shown = {} if run.amp is None else of_training(run)
    in_float32 = run.model.state_dict()
    tensors = {f"buffers.{name}": buffer for name, buffer in run.model.named_buffers()}
    for name, param in run.model.named_parameters():
        tensors[f"params.{name}"] = param
        tensors[f"masters.{name}"] = in_float32[name]
        tensors[f"grads.{name}"] = param.grad
        for i, optimizer in enumerate(run.optimizers):
            for key, state in optimizer.state.get(param, {}).items():
                tensors[f"optimizers.{i}.{name}.{key}"] = state
    return {**shown, **{name: text(each) for name, each in tensors.items() if each is not None}}


def of_training(run: LanguagesRun) -> Seen:
    shown = {f"scalers.{i}": numbers(s.state()) for i, s in enumerate(run.amp.loss_scalers)}
    for i, optimizer in enumerate(run.optimizers):
        known = amp.telemetry(optimizer)
        stepped = -1 if known.stepped is None else known.stepped
        counts = [known.steps, known.skipped_steps, stepped]
        shown[f"optimizers.{i}.telemetry"] = numbers([*counts, *known.loss_scales])
    return shown


def text(tensor: Any) -> str:
    return numbers(torch.as_tensor(tensor).flatten().tolist())


def numbers(values: Sequence[float]) -> str:
    return " %.17g" * len(values) % tuple(values)


def difference(program: Program, cpp: list[Seen], python: list[Seen]) -> str:
    """The first event after which the two differ, and in what; empty if they never do. C++ warns of
    one thing once for all optimizers, and of steps of the wrapped one."""
    events = ["setup", *map(str, program.events)]
    for i, (event, one, other) in enumerate(zip(events, cpp, python)):
        names = [
            f"{name} is{one.get(name, ' none')} in C++ and{other.get(name, ' none')} in Python"
            for name in {**one, **other}
            if one.get(name, "none") != other.get(name, "none") and not name.startswith("warned")
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

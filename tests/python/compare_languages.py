"""Follows scripts in C++ and in Python, and compares what a program sees after each event."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import scripted
from scripted import Seen
from scripts import Script, is_plain

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "tests" / "languages" / "languages"


def in_cpp(scripts: list[Script], folder: Path) -> list[list[Seen]]:
    """What C++ sees after each event of each script; files are in `folder`. If it crashes it has
    "crashed" after the event at which it did, and has seen no later one."""
    seen: list[list[Seen]] = []
    while len(seen) < len(scripts):
        seen += followed(scripts[len(seen) :], folder)
    return seen


def followed(scripts: list[Script], folder: Path) -> list[list[Seen]]:
    """The same, up to the script that crashes."""
    if not PROGRAM.is_file():
        raise FileNotFoundError(f"expected {PROGRAM} to be there: run `make test`")
    done = subprocess.run(
        [PROGRAM],
        input="".join(f"{event}\n" for script in scripts for event in ("script", *script)),
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    seen = [parsed(events) for events in done.stdout.split("script\n")[1:]]
    if done.returncode != 0:
        seen[-1][-1] = {"crashed": f" {done.returncode}"}
    return seen


def parsed(events: str) -> list[Seen]:
    """What was printed after each event."""
    return [
        dict(line.partition(":")[::2] for line in printed.splitlines())
        for printed in events.split("after\n")[1:]
    ]


def in_python(script: Script, folder: Path) -> list[Seen]:
    """The same in Python."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        return scripted.follow(script)
    finally:
        os.chdir(before)


def is_of_grads(name: str) -> bool:
    return name.startswith("grads.") or name.endswith(".grad")


def may_differ(name: str, is_alone: bool) -> bool:
    """Where C++ has lost grads. The norm of one optimizer's is infinite in both languages."""
    return is_of_grads(name) or (name == "norm" and not is_alone)


def has_overflowed(event: str, seen: Seen) -> bool:
    grads = " ".join(seen[name] for name in seen if name == "norm" or is_of_grads(name))
    return "overflow" in event or not all(map(math.isfinite, map(float, grads.split())))


def taken_away(script: Script, python: list[Seen]) -> Iterator[bool]:
    """After each event, whether C++ may have no grads: an overflow takes those of LibTorch's
    optimizers away, until they are zeroed (docs/grads.md)."""
    optimizers = [event for event in script if event.startswith("optimizer ")]
    taken: set[str] = set()
    for event, seen in zip(script, python):
        if is_plain(script) and has_overflowed(event, seen):
            taken = set(map(str, range(len(optimizers))))
        if event.startswith("zero "):
            taken.discard(event.split()[1])
        if event == "release":
            taken.clear()
        yield bool(taken)


def difference(script: Script, cpp: list[Seen], python: list[Seen]) -> str:
    """The first event after which the two differ, and in what; empty if they never do."""
    without_grads = taken_away(script, python)
    is_alone = sum(event.startswith("optimizer ") for event in script) == 1
    for i, (event, one, other, skips) in enumerate(zip(script, cpp, python, without_grads)):
        names = [
            f"{name} is{one.get(name, ' none')} in C++ and{other.get(name, ' none')} in Python"
            for name in {**one, **other}
            if one.get(name, "none") != other.get(name, "none")
            and not (skips and may_differ(name, is_alone))
        ]
        if "crashed" in one:
            return f"after event {i}, {event!r}: C++ crashed with{one['crashed']}"
        if names:
            return f"after event {i}, {event!r}: {'; '.join(names[:3])}; {len(names)} in all"
    assert len(cpp) == len(python) == len(script)
    return ""

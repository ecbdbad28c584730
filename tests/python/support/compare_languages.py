"""Follows scripts in C++ and in Python, and compares what a program sees after each event."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import scripted
from scripted import Seen
from scripts import Script

ROOT = Path(__file__).parents[3]
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


def difference(script: Script, cpp: list[Seen], python: list[Seen]) -> str:
    """The first event after which the two differ, and in what; empty if they never do."""
    for i, (event, one, other) in enumerate(zip(script, cpp, python)):
        names = [
            f"{name} is{one.get(name, ' none')} in C++ and{other.get(name, ' none')} in Python"
            for name in {**one, **other}
            if one.get(name, "none") != other.get(name, "none")
        ]
        if "crashed" in one:
            return f"after event {i}, {event!r}: C++ crashed with{one['crashed']}"
        if names:
            return f"after event {i}, {event!r}: {'; '.join(names[:3])}; {len(names)} in all"
    assert len(cpp) == len(python) == len(script)
    return ""

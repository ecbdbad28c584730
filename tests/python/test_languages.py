"""C++ and Python do the same, bit for bit, whatever a training goes through.

Both follow the scripts of tests/python/scripts.py, and what a program can see after each event is
compared.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import scripted
from drawn_scripts import drawn
from scripted import Seen
from scripts import Script, by_hand, events_in, is_plain, start

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
PROGRAM = BUILD / "tests" / "languages" / "languages"

BY_HAND = dict(by_hand())
DRAWN = {
    f"{seed}-{kind}": drawn(seed, is_plain=kind == "SGD")
    for seed in range(24)
    for kind in ("SGD", "Fused")
}


def in_cpp(scripts: list[Script], folder: Path) -> list[list[Seen]]:
    """What C++ sees after each event of each script; files are in `folder`."""
    if not PROGRAM.is_file():
        pytest.fail(f"expected {PROGRAM} to be there: run `make test`")
    done = subprocess.run(
        [PROGRAM],
        input="".join(f"{event}\n" for script in scripts for event in ("script", *script)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=folder,
    )
    return [parsed(events) for events in done.stdout.split("script\n")[1:]]


def parsed(events: str) -> list[Seen]:
    """What was printed after each event."""
    return [
        dict(line.split(":", maxsplit=1) for line in printed.splitlines())
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
    return name == "norm" or name.startswith("grads.") or name.endswith(".grad")


def has_overflowed(event: str, seen: Seen) -> bool:
    grads = " ".join(values for name, values in seen.items() if is_of_grads(name))
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
        yield bool(taken)


def difference(script: Script, cpp: list[Seen], python: list[Seen]) -> str:
    """The first event after which the two differ, and in what; empty if they never do."""
    assert len(cpp) == len(python) == len(script)
    without_grads = taken_away(script, python)
    for i, (event, one, other, skips) in enumerate(zip(script, cpp, python, without_grads)):
        names = [
            f"{name} is{one.get(name, ' none')} in C++ and{other.get(name, ' none')} in Python"
            for name in {**one, **other}
            if one.get(name) != other.get(name) and not (skips and is_of_grads(name))
        ]
        if names:
            return f"after event {i}, {event!r}: {'; '.join(names[:3])}; {len(names)} in all"
    return ""


def refused(script: Script, seen: list[Seen]) -> list[str]:
    return [event for event, after in zip(script, seen) if "raised" in after]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory) -> dict[str, list[Seen]]:
    """What C++ sees of every script, by the script's name."""
    scripts = {**BY_HAND, **DRAWN}
    seen = in_cpp(list(scripts.values()), tmp_path_factory.mktemp("cpp"))
    return dict(zip(scripts, seen))


@pytest.mark.parametrize("name", BY_HAND)
def test_scripts(cpp, tmp_path, name):
    script = BY_HAND[name]
    python = in_python(script, tmp_path)
    assert difference(script, cpp[name], python) == ""
    assert refused(script, python) == [event for event in script if event.endswith("# refused")]


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_scripts(cpp, tmp_path, name):
    script = DRAWN[name]
    assert difference(script, cpp[name], in_python(script, tmp_path)) == ""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["SGD", "Fused"])
def test_many_drawn_scripts(tmp_path, kind):
    scripts = [drawn(seed, is_plain=kind == "SGD") for seed in range(24, 324)]
    for seed, (script, seen) in enumerate(zip(scripts, in_cpp(scripts, tmp_path)), start=24):
        assert (seed, difference(script, seen, in_python(script, tmp_path))) == (seed, "")


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", ["SGD", "FusedAdam"])
def test_the_simple_loop_steps_and_skips(cpp, level, kind):
    seen = cpp[f"simple_loop-{level}-{kind}"][-1]
    steps, skipped, underflowed = map(int, seen["optimizers.0.steps"].split())
    assert 0 < skipped < steps and underflowed == 0


def test_a_difference_is_named(tmp_path):
    script = BY_HAND["overflows-O2-SGD"]
    seen = in_python(script, tmp_path)
    other = [dict(after) for after in seen]
    other[4]["params.first.bias"] = " 0 0 0 1"
    assert difference(script, other, seen).startswith(
        f"after event 4, {script[4]!r}: params.first.bias is 0 0 0 1 in C++ and -"
    )


FIRST_HALF = events_in("""
    scale 0 1024 1998
    backward 0 1
    backward 1 2
    step 0
    step 1
    set 0 momentum 0.5
    set 1 amsgrad 1
    set 1 lr 0.1
    zero 0 none
    zero 1 none
    backward 1 3 overflow
    step 0
    step 1
    zero 0 none
    zero 1 none
""")
SECOND_HALF = events_in("""
    backward 0 4
    clip_norm 0.1
    step 0
    step 1
    zero 0 none
    zero 1 none
    backward 1 5
    step 1
    step 0
""")


def second_half(seen: list[Seen]) -> list[Seen]:
    """What is seen in it; but for the count of steps, which starts with the program."""
    return [
        {name: values for name, values in after.items() if not name.endswith(".steps")}
        for after in seen[-len(SECOND_HALF) :]
    ]


def in_cpp_alone(script: Script, folder: Path) -> list[Seen]:
    return in_cpp([script], folder)[0]


@pytest.mark.parametrize(
    "one, other",
    [(in_cpp_alone, in_python), (in_python, in_cpp_alone)],
    ids=["from_cpp", "from_python"],
)
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "O5"])
def test_the_other_language_goes_on(tmp_path, level, one, other):
    first = start(level, "FusedSGD first norm", "FusedAdam last")
    whole = one([*first, *FIRST_HALF, *SECOND_HALF], tmp_path)
    one([*first, *FIRST_HALF, "save run.pt"], tmp_path)
    rest = other([*first, "load run.pt", *SECOND_HALF], tmp_path)
    assert difference(SECOND_HALF, second_half(whole), second_half(rest)) == ""

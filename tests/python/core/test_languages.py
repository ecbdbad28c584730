"""C++ and Python do the same, bit for bit, whatever a training goes through.

Both follow the scripts of tests/python/support/scripts.py, and what a program can see after each
event is compared.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import compare_languages
import pytest
from compare_languages import difference, in_cpp, in_python
from fuzz_languages import found, shrunk
from scripted import Seen
from scripts import Script, by_hand, events_in, start

pytestmark = pytest.mark.usefixtures("one_thread")

BY_HAND = dict(by_hand())
FEW, MANY = 50, 500


#: Follows events as the C++ program does, and crashes at one.
CRASHING = """#!/bin/sh
while read -r event; do
  case "$event" in
    script) echo script ;;
    *crash*) echo after; printf 'half a li'; kill -ABRT $$ ;;
    *) echo after; echo 'seen: 1' ;;
  esac
done
"""


def refused(script: Script, seen: list[Seen]) -> list[str]:
    return [event for event, after in zip(script, seen) if "raised" in after]


@pytest.fixture(scope="module")
def cpp(tmp_path_factory) -> dict[str, list[Seen]]:
    """What C++ sees of every script, by the script's name."""
    seen = in_cpp(list(BY_HAND.values()), tmp_path_factory.mktemp("cpp"))
    return dict(zip(BY_HAND, seen))


@pytest.mark.parametrize("name", BY_HAND)
def test_scripts(cpp, tmp_path, name):
    script = BY_HAND[name]
    python = in_python(script, tmp_path)
    assert difference(script, cpp[name], python) == ""
    assert refused(script, python) == [event for event in script if event.endswith("# refused")]


def assert_no_seed_differs(first: int, count: int) -> None:
    for seed, what in found(range(first, first + count)):
        pytest.fail(
            f"seed {seed}: {what}\n"
            f"run `python tests/python/support/fuzz_languages.py --seed {seed} --shrink`"
        )


@pytest.mark.parametrize("first", range(0, 250, FEW))
def test_drawn_scripts(first):
    assert_no_seed_differs(first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(250, 4_250, MANY))
def test_many_drawn_scripts(first):
    assert_no_seed_differs(first, MANY)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", ["SGD", "FusedAdam"])
def test_the_simple_loop_steps_and_skips(cpp, level, kind):
    seen = cpp[f"simple_loop-{level}-{kind}"][-1]
    steps, skipped = map(int, seen["optimizers.0.telemetry"].split()[:2])
    assert 0 < skipped < steps


def test_a_difference_is_named(tmp_path):
    script = BY_HAND["overflows-O2-SGD"]
    seen = in_python(script, tmp_path)
    other = [dict(after) for after in seen]
    other[4]["params.first.bias"] = " 0 0 0 1"
    assert difference(script, other, seen).startswith(
        f"after event 4, {script[4]!r}: params.first.bias is 0 0 0 1 in C++ and -"
    )


def test_a_crash_tells_its_script_and_event(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text(CRASHING)
    program.chmod(0o755)
    monkeypatch.setattr(compare_languages, "PROGRAM", program)
    scripts = [["look", "look"], ["look", "save crash", "look"], ["look"]]
    assert in_cpp(scripts, tmp_path) == [
        [{"seen": " 1"}, {"seen": " 1"}],
        [{"seen": " 1"}, {"crashed": f" {-signal.SIGABRT}"}],
        [{"seen": " 1"}],
    ]


def test_scripts_are_shrunk():
    script = ["optimizer SGD last", "initialize O2 128", "backward 0 1 delayed of=0", "step 0"]

    def first_bad(scripts: Iterable[Script]) -> Script | None:
        return next((script for script in scripts if any("of=0" in e for e in script)), None)

    assert shrunk(script, first_bad) == ["backward of=0"]


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
    """What is seen in it; but for telemetry, which starts with the program."""
    return [
        {name: values for name, values in after.items() if not name.endswith("telemetry")}
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

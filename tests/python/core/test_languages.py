"""C++ and Python do the same, bit for bit, whatever a training goes through.

Both run the programs of tests/python/support/languages, and what a program can see after each event
is compared.
"""

from __future__ import annotations

import signal

import pytest
from fuzz.events import Event, Program
from fuzz.properties import check
from languages import runs
from languages.by_hand import (
    INNER,
    LAST,
    REFUSED,
    backward,
    change,
    clip_norm,
    overflow,
    program,
    programs,
    scale,
    step,
    zero,
)
from languages.runs import Seen, difference, in_cpp, in_python, in_pythons_words

pytestmark = pytest.mark.usefixtures("one_thread")

BY_HAND = dict(programs())
FEW, MANY = 50, 500


#: Runs programs as the C++ program does, and crashes at one event.
CRASHING = """#!/bin/sh
while read -r event; do
  case "$event" in
    setup*) echo program; echo after ;;
    save*) echo after; printf 'half a li'; kill -ABRT $$ ;;
    *) echo after; echo 'seen: 1' ;;
  esac
done
"""


@pytest.fixture(scope="module")
def cpp() -> dict[str, list[Seen]]:
    """What C++ sees of every program by hand."""
    return dict(zip(BY_HAND, in_cpp(list(BY_HAND.values()))))


@pytest.mark.parametrize("name", BY_HAND)
def test_programs_by_hand(cpp, name):
    python = in_python(BY_HAND[name])
    assert difference(BY_HAND[name], cpp[name], python) == ""
    refused = [i for i, after in enumerate(python[1:]) if "raised" in after]
    assert refused == REFUSED.get(name.partition("-")[0], [])


@pytest.mark.parametrize("first", range(0, 100, FEW))
def test_drawn_programs(first):
    check("languages", first, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 2_100, MANY))
def test_many_drawn_programs(first):
    check("languages", first, MANY)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", ["SGD", "FusedAdam"])
def test_the_simple_loop_steps_and_skips(cpp, level, kind):
    seen = cpp[f"simple_loop-{level}-{kind}"][-1]
    steps, skipped = map(int, seen["optimizers.0.telemetry"].split()[:2])
    assert 0 < skipped < steps


def test_a_difference_is_named():
    whole = BY_HAND["overflows-O2-SGD"]
    seen = in_python(whole)
    other = [dict(after) for after in seen]
    other[4]["params.parts.2.bias"] = " 0 0 1"
    assert difference(whole, other, seen).startswith(
        f"after event 4, {whole.events[3]}: params.parts.2.bias is 0 0 1 in C++ and "
    )


def test_a_backward_that_nobody_knows_is_refused():
    """Else its program would show less than it says."""
    with pytest.raises(ValueError, match="expected ends to be one of .*, got 'late'"):
        backward(1, ends="late")


def test_cpp_names_the_class_of_a_function():
    named, bare = (f" RuntimeError: {name}: no" for name in ("Optimizer::step", "step"))
    assert in_pythons_words("raised", named) == ("raised", "RuntimeError: step: no")
    assert in_pythons_words("raised", bare) != in_pythons_words("raised", named)


def test_a_crash_tells_its_program_and_event(tmp_path, monkeypatch):
    executable = tmp_path / "program"
    executable.write_text(CRASHING)
    executable.chmod(0o755)
    monkeypatch.setattr(runs, "PROGRAM", executable)
    look, save = Event("look", {"of": 0}), Event("save")
    given = [program("O0", events=events) for events in ([look], [look, save, look], [look])]
    assert in_cpp(given) == [
        [{}, {"seen": " 1"}],
        [{}, {"seen": " 1"}, {"crashed": f" {-signal.SIGABRT}"}],
        [{}, {"seen": " 1"}],
    ]


FIRST_HALF = [
    *[scale(0, 1024.0, 1998), backward(1, 0, 1), backward(2, 0, 1, loss=1), step(0), step(1)],
    *[change("momentum", 0.5), change("maximize", True, 1), change("lr", 0.1, 1), zero(0), zero(1)],
    *[overflow(3, 0, 1, loss=1), step(0), step(1), zero(0), zero(1)],
]
SECOND_HALF = [
    *[backward(4, 0, 1), clip_norm(0, 1, max_norm=0.1), step(0), step(1), zero(0), zero(1)],
    *[backward(5, 0, 1, loss=1), step(1), step(0)],
]


def second_half(seen: list[Seen]) -> list[Seen]:
    """The results of the second half; but for telemetry, which starts with the program."""
    return [
        {name: values for name, values in after.items() if not name.endswith("telemetry")}
        for after in seen[-len(SECOND_HALF) :]
    ]


def in_cpp_alone(given: Program) -> list[Seen]:
    return in_cpp([given])[0]


@pytest.mark.parametrize(
    "one, other",
    [(in_cpp_alone, in_python), (in_python, in_cpp_alone)],
    ids=["from_cpp", "from_python"],
)
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "O5"])
def test_the_other_language_goes_on(tmp_path, level, one, other):
    def of(*events: Event) -> Program:
        return program(level, ("FusedSGD", INNER), ("FusedAdam", LAST), events=list(events))

    save, load = (Event(name, {"file": str(tmp_path / "run.pt")}) for name in ("save", "load"))
    whole = one(of(*FIRST_HALF, *SECOND_HALF))
    one(of(*FIRST_HALF, save))
    rest = other(of(load, *SECOND_HALF))
    second = program(level, events=SECOND_HALF[1:])
    assert difference(second, second_half(whole), second_half(rest)) == ""

"""Programs in the shapes of public LibTorch programs: with torchamp, and as they were before."""

from __future__ import annotations

import functools
import math
import pathlib
import sys
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet
from installed import FOLDER, ROOT, launcher, once, run

SOURCES = ROOT / "tests" / "install" / "programs"
ITERATIONS = 12
OVERFLOW_AT = 8

#: How far losses may be from those in float32, by `distance`. The largest measured is 0.007, of
#: seq2seq at O4; the programs without their steps are at least 0.09 away.
TOLERANCE = 0.02

#: Backwards of an iteration, all of one loss scale, where there are several.
BACKWARDS = {"ddpg": 2, "self_play": 2}

#: Two optimizers and losses; a recurrent network; two models. The rest are soak tests.
FIRST = ("ddpg", "seq2seq", "srgan")
NAMES = [path.stem for path in sorted(SOURCES.glob("*.cpp"))]


def every_program(*levels: str) -> pytest.MarkDecorator:
    """Each by its name, at each of the levels."""

    def case(name: str, *level: str) -> ParameterSet:
        is_first = name in FIRST and {*level} <= {"O1", "O2"}
        marks = [pytest.mark.xdist_group("programs"), *[pytest.mark.soak] * (not is_first)]
        return pytest.param(name, *level, marks=marks)

    if not levels:
        return pytest.mark.parametrize("name", [case(name) for name in NAMES])
    pairs = [case(name, level) for name in NAMES for level in levels]
    return pytest.mark.parametrize(("name", "level"), pairs)


class Line(NamedTuple):
    """What a program prints of an iteration."""

    losses: list[float]
    weights: list[float]
    scales: list[float]


class Built(NamedTuple):
    """A program that was built both ways."""

    name: str
    folder: pathlib.Path

    def printed(self, *words: str) -> list[str]:
        """The lines that it prints."""
        return printed(self.folder / "programs", self.name, *words)

    def printed_plain(self, *words: str) -> list[str]:
        """The same without torchamp."""
        return printed(self.folder / "programs_plain", self.name, *words)


@functools.cache
def printed(*command: object) -> list[str]:
    """With one thread, which adds in one order."""
    return run(*command, OMP_NUM_THREADS=1).splitlines()


def parsed(printed: list[str]) -> list[Line]:
    """Those of a whole run, as numbers."""
    assert [int(line.split()[0]) for line in printed] == list(range(ITERATIONS))
    return [Line(*map(numbers, line.partition(" ")[2].split("|"))) for line in printed]


def numbers(text: str) -> list[float]:
    return [float.fromhex(word) for word in text.split()]


@pytest.fixture
def program(prefix: pathlib.Path, name: str) -> Built:
    """The program of this name, built against an installed torchamp."""
    which = "first" if name in FIRST else "others"
    names = [each for each in NAMES if (each in FIRST) == (name in FIRST)]
    tree = FOLDER / f"programs_{which}"

    def build() -> None:
        python = f"-DPython3_EXECUTABLE={sys.executable}"
        options = [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DPROGRAMS={';'.join(names)}"]
        run("cmake", "-S", SOURCES, "-B", tree, *launcher(), python, *options)
        run("cmake", "--build", tree, "--parallel", "2")

    once(f"programs_{which}", build)
    return Built(name, tree)


def distance(ours: list[Line], theirs: list[Line]) -> float:
    """The sum of differences of losses, as a share of the sum of losses; of several losses, the
    largest."""

    def of_one(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
        return sum(abs(a - b) for a, b in zip(ours, theirs)) / sum(map(abs, theirs))

    def columns(lines: list[Line]) -> zip[tuple[float, ...]]:
        return zip(*(line.losses for line in lines))

    return max(map(of_one, columns(ours), columns(theirs)))


@pytest.mark.parametrize("words", [(), (f"overflow={ITERATIONS - 1}",)], ids=["", "overflow"])
@every_program()
def test_o0_is_the_program_without_torchamp(program: Built, words: tuple[str, ...]) -> None:
    """Up to an overflow, which float32 does not survive."""
    at_o0 = program.printed(*words)
    assert len(parsed(at_o0)) == ITERATIONS
    assert at_o0 == program.printed_plain(*words)


@every_program("O1", "O2", "O4", "O5")
def test_learns_as_in_float32(program: Built, level: str) -> None:
    """With a loss scale at which no step is skipped."""
    scale = ["loss_scale=128"] if level in ("O1", "O2") else []
    ours = parsed(program.printed(f"level={level}", *scale))
    theirs = parsed(program.printed_plain())
    assert 0 < distance(ours, theirs) < TOLERANCE


@every_program("O1", "O2", "O4", "O5")
def test_skips_the_step_of_an_overflow(program: Built, level: str) -> None:
    """And goes on with a lower loss scale. O4 and O5 skip none with their own, which is fixed."""
    words = [f"level={level}", f"overflow={OVERFLOW_AT}", "loss_scale=dynamic"]
    lines = parsed(program.printed(*words))
    before, overflow, last = lines[OVERFLOW_AT - 1], lines[OVERFLOW_AT], lines[-1]
    assert before.weights != lines[0].weights
    assert overflow.weights == before.weights
    halved = 0.5 ** BACKWARDS.get(program.name, 1)
    assert overflow.scales == [halved * scale for scale in before.scales]
    assert all(a != b for a, b in zip(overflow.weights, last.weights))
    assert all(map(math.isfinite, last.losses + last.weights))


@every_program("plain", "O0", "O1", "O2", "O4", "O5")
def test_resumes(program: Built, level: str, tmp_path: pathlib.Path) -> None:
    """A process that loads goes on bit for bit; saving changes nothing."""
    printed = program.printed_plain if level == "plain" else program.printed
    words = [] if level == "plain" else [f"level={level}"]
    uninterrupted = printed(*words)
    assert len(uninterrupted) == ITERATIONS
    assert printed(*words, f"save={tmp_path}/run") == uninterrupted
    resumed = printed(*words, f"resume={tmp_path}/run")
    assert resumed == uninterrupted[ITERATIONS // 2 :]

"""Programs in the shapes of public LibTorch programs. Each is built twice: with torchamp, and as it
was before."""

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


def every_program(*levels: str) -> pytest.MarkDecorator:
    """Each by its name, at each of the levels."""

    def case(name: str, *level: str) -> ParameterSet:
        is_first = name in FIRST and {*level} <= {"O1", "O2"}
        marks = [pytest.mark.xdist_group("programs"), *[pytest.mark.soak] * (not is_first)]
        return pytest.param(name, *level, marks=marks)

    names = [path.stem for path in sorted(SOURCES.glob("*.cpp"))]
    if not levels:
        return pytest.mark.parametrize("name", [case(name) for name in names])
    pairs = [case(name, level) for name in names for level in levels]
    return pytest.mark.parametrize(("name", "level"), pairs)


class Line(NamedTuple):
    """What a program prints of an iteration."""

    losses: list[float]
    weights: list[float]
    scales: list[float]


@functools.cache
def printed(program: pathlib.Path, *words: str) -> list[str]:
    """The lines that a program prints, with one thread, which adds in one order."""
    return run(program, *words, OMP_NUM_THREADS=1).splitlines()


def parsed(printed: list[str]) -> list[Line]:
    """Those of a whole run, as numbers."""
    assert [int(line.split()[0]) for line in printed] == list(range(ITERATIONS))
    return [Line(*map(numbers, line.partition(" ")[2].split("|"))) for line in printed]


def numbers(text: str) -> list[float]:
    return [float.fromhex(word) for word in text.split()]


@pytest.fixture
def programs(prefix: pathlib.Path, name: str) -> pathlib.Path:
    """The folder of the programs; that of this name is built against an installed torchamp."""
    tree = FOLDER / "programs"

    def configure() -> None:
        python = f"-DPython3_EXECUTABLE={sys.executable}"
        found = f"-DCMAKE_PREFIX_PATH={prefix}"
        run("cmake", "-S", SOURCES, "-B", tree, *launcher(), python, found)

    def build() -> None:
        run("cmake", "--build", tree, "--parallel", "2", "--target", name, f"{name}_plain")

    once("programs", configure)
    once(f"programs_{name}", build)
    return tree


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
def test_o0_is_the_program_without_torchamp(
    programs: pathlib.Path, name: str, words: tuple[str, ...]
) -> None:
    """Up to an overflow, which float32 does not survive."""
    at_o0 = printed(programs / name, *words)
    assert len(parsed(at_o0)) == ITERATIONS
    assert at_o0 == printed(programs / f"{name}_plain", *words)


@every_program("O1", "O2", "O4", "O5")
def test_learns_as_in_float32(programs: pathlib.Path, name: str, level: str) -> None:
    """With a loss scale at which no step is skipped."""
    scale = ["loss_scale=128"] if level in ("O1", "O2") else []
    ours = parsed(printed(programs / name, f"level={level}", *scale))
    theirs = parsed(printed(programs / f"{name}_plain"))
    assert 0 < distance(ours, theirs) < TOLERANCE


@every_program("O1", "O2", "O4", "O5")
def test_skips_the_step_of_an_overflow(programs: pathlib.Path, name: str, level: str) -> None:
    """And goes on with a lower loss scale. O4 and O5 skip none with their own, which is fixed."""
    words = [f"level={level}", f"overflow={OVERFLOW_AT}", "loss_scale=dynamic"]
    lines = parsed(printed(programs / name, *words))
    before, overflow, last = lines[OVERFLOW_AT - 1], lines[OVERFLOW_AT], lines[-1]
    assert before.weights != lines[0].weights
    assert overflow.weights == before.weights
    halved = 0.5 ** BACKWARDS.get(name, 1)
    assert overflow.scales == [halved * scale for scale in before.scales]
    assert all(a != b for a, b in zip(overflow.weights, last.weights))
    assert all(map(math.isfinite, last.losses + last.weights))


@every_program("plain", "O0", "O1", "O2", "O4", "O5")
def test_resumes(programs: pathlib.Path, name: str, level: str, tmp_path: pathlib.Path) -> None:
    """A process that loads goes on bit for bit; saving changes nothing."""
    program = programs / (f"{name}_plain" if level == "plain" else name)
    words = [] if level == "plain" else [f"level={level}"]
    uninterrupted = printed(program, *words)
    assert len(uninterrupted) == ITERATIONS
    assert printed(program, *words, f"save={tmp_path}/run") == uninterrupted
    resumed = printed(program, *words, f"resume={tmp_path}/run")
    assert resumed == uninterrupted[ITERATIONS // 2 :]

"""Every C++ example learns what it is to learn in a short run, and leaves what plot.py draws."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest
from runs import EXAMPLES, Step, read_steps


def losses(steps: list[Step]) -> list[float]:
    return [step.loss for step in steps]


def last_loss(steps: list[Step]) -> float:
    """The mean over the last ten steps."""
    return statistics.mean(losses(steps[-10:]))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_dcgan(run_cpp, tmp_path: Path, level: str) -> None:
    """Three losses with a scale each; generated images come closer to real ones."""
    done = run_cpp("dcgan", "--level", level, "--steps", 40, "--out", tmp_path)
    before, after = (float(done.summary[f"distance_{when}"]) for when in ("before", "after"))
    assert after < 0.5 * before
    for name in ("real", "fake", "generator"):
        steps = read_steps(tmp_path / f"{name}.csv")
        assert len(steps) == 40
        assert all(map(math.isfinite, losses(steps)))
        assert steps[0].loss_scale == 2.0**16


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_char_transformer(run_cpp, tmp_path: Path, level: str) -> None:
    """It begins by guessing evenly, and comes to know more than how frequent each letter is."""
    steps_csv = tmp_path / "steps.csv"
    done = run_cpp("char_transformer", "--level", level, "--steps", 40, "--out", steps_csv)
    steps = read_steps(steps_csv)
    evenly = math.log(int(done.summary["alphabet"]))
    assert len(steps) == 40
    assert losses(steps)[0] == pytest.approx(evenly, rel=0.1)
    assert last_loss(steps) < letter_entropy() - 0.3
    sample = done.stdout.split("\n\n", 1)[1]
    assert len(sample) == len("The sea") + 200 + len("\n")


def letter_entropy() -> float:
    """The loss of who knows only how frequent each letter of the tale is."""
    text = (EXAMPLES / "data" / "tale.txt").read_text()
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log(share) for share in shares)


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_lstm(run_cpp, tmp_path: Path, level: str) -> None:
    """It recalls the first of up to eight symbols, whatever the padding holds."""
    done = run_cpp("lstm", "--level", level, "--steps", 80, "--out", tmp_path / "steps.csv")
    assert float(done.summary["accuracy"]) > 0.9
    assert len(read_steps(tmp_path / "steps.csv")) == 80

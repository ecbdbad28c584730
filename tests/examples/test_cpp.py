"""Every C++ example learns its task in a short run, and writes a CSV for plot.py."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest
from cpp_programs import run_cpp
from runs import EXAMPLES, Step, read_steps

pytestmark = pytest.mark.soak


def losses(steps: list[Step]) -> list[float]:
    return [step.loss for step in steps]


def last_loss(steps: list[Step]) -> float:
    """The mean over the last ten steps."""
    return statistics.mean(losses(steps[-10:]))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_dcgan(tmp_path: Path, level: str) -> None:
    """Three losses with separate scales; generated images become more similar to real ones."""
    done = run_cpp("dcgan", "--level", level, "--steps", 40, "--out", tmp_path)
    before, after = (float(done.summary[f"distance_{when}"]) for when in ("before", "after"))
    assert after < 0.5 * before
    for name in ("real", "fake", "generator"):
        steps = read_steps(tmp_path / f"{name}.csv")
        assert len(steps) == 40
        assert all(map(math.isfinite, losses(steps)))
        assert steps[0].loss_scale == 2.0**16


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_char_transformer(tmp_path: Path, level: str) -> None:
    """It starts with uniform predictions, and learns more than the letter frequencies."""
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
    """The loss of predicting only the letter frequencies of the tale."""
    text = (EXAMPLES / "data" / "tale.txt").read_text()
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log(share) for share in shares)


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_lstm(tmp_path: Path, level: str) -> None:
    """It recalls the first of up to eight symbols, independent of the padding."""
    done = run_cpp("lstm", "--level", level, "--steps", 80, "--out", tmp_path / "steps.csv")
    assert float(done.summary["accuracy"]) > 0.9
    assert len(read_steps(tmp_path / "steps.csv")) == 80


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_ddpm(tmp_path: Path, level: str) -> None:
    """The averaged weights draw points near a ring of radius 2; noise is 0.8 away from it."""
    steps_csv = tmp_path / "steps.csv"
    done = run_cpp("ddpm", "--level", level, "--steps", 400, "--out", steps_csv)
    assert float(done.summary["distance_after"]) < 0.3
    assert last_loss(read_steps(steps_csv)) < 0.5


def test_hand_written_loop(tmp_path: Path) -> None:
    """It skips the first steps, whose scale is too high, and learns its task."""
    steps_csv = tmp_path / "steps.csv"
    done = run_cpp("hand_written_loop", "--out", steps_csv)
    steps = read_steps(steps_csv)
    assert float(done.summary["test_accuracy"]) > 0.85
    assert steps[0].skipped and steps[0].loss_scale == 2.0**24
    assert steps[1].loss == pytest.approx(steps[0].loss, rel=0.1)
    assert int(done.summary["skipped_steps"]) == sum(step.skipped for step in steps)
    assert not all(step.skipped for step in steps[-10:])


def test_distributed() -> None:
    """Both ranks skip the same steps, and have the same weights in the end."""
    launcher = EXAMPLES / "cpp" / "distributed" / "launch.sh"
    summary = run_cpp("distributed", "--steps", 60, launcher=(launcher, 2)).summary
    for name in ("accuracy", "skipped_steps", "loss_scale"):
        assert summary[f"rank0_{name}"] == summary[f"rank1_{name}"]
    assert float(summary["rank0_accuracy"]) > 0.7
    assert int(summary["rank0_skipped_steps"]) > 0


def test_migrate_scaler(tmp_path: Path) -> None:
    """Before: NaN from the first overflow on. After: those steps are skipped."""
    done = run_cpp("migrate_scaler", "--out", tmp_path / "steps.csv")
    steps = read_steps(tmp_path / "steps.csv")
    assert math.isnan(float(done.summary["before_loss"]))
    assert float(done.summary["after_loss"]) < 0.02
    assert [step.skipped for step in steps] == sorted(
        (step.skipped for step in steps), reverse=True
    )
    assert steps[0].skipped


def test_cuda_graph_without_a_card() -> None:
    """It reports what is missing, and that nothing was run."""
    done = run_cpp("cuda_graph")
    assert "NOTHING WAS RUN" in done.stdout
    assert "a CUDA device" in done.stdout

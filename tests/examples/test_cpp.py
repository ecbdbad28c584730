"""Every C++ example learns what it is to learn in a short run, and leaves what plot.py draws."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from runs import Step, read_steps


def losses(steps: list[Step]) -> list[float]:
    return [step.loss for step in steps]


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

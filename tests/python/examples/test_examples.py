"""The demo: its checks of the runs, and a short run in each language."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

import runs  # noqa: E402
import summary  # noqa: E402


def made_up_run(language: str) -> runs.Run:
    steps = [runs.Step(0, 2.5, 8.0, True), runs.Step(1, 2.25, 4.0, False)]
    return runs.Run("O2", language, "cpu", "avx2", 0.98, 1.5, 100.0, 4.0, 1, steps)


def test_runs_that_agree():
    assert summary.disagreement(made_up_run("C++"), made_up_run("Python")) is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"loss": 2.27}, "expected losses within 0.01, got 2.25 and 2.27 at step 1"),
        ({"loss": float("nan")}, "expected losses within 0.01, got 2.25 and nan at step 1"),
        ({"loss_scale": 8.0}, "expected the same loss scale and skips, got at step 1"),
        ({"skipped": True}, "expected the same loss scale and skips, got at step 1"),
    ],
)
def test_runs_that_differ(change, complaint):
    cpp, python = made_up_run("C++"), made_up_run("Python")
    python.steps[1] = replace(python.steps[1], **change)
    assert complaint in summary.disagreement(cpp, python)


def test_runs_of_different_lengths():
    cpp, python = made_up_run("C++"), made_up_run("Python")
    del python.steps[1]
    assert "expected the same number of steps, got 2 and 1" in summary.disagreement(cpp, python)


@pytest.mark.parametrize("accuracy", [0.9699, float("nan")])
def test_runs_that_learned_too_little(accuracy):
    weak = replace(made_up_run("C++"), test_accuracy=accuracy)
    assert len(summary.inaccuracies([weak, made_up_run("Python")])) == 1


def test_the_summary_has_a_row_a_run(tmp_path):
    summary.write_summary([made_up_run("C++"), made_up_run("Python")], tmp_path / "summary.csv")
    header, *rows = (tmp_path / "summary.csv").read_text().splitlines()
    assert header == ",".join(summary.COLUMNS)
    assert rows[0] == "O2,C++,cpu,avx2,0.9800,1.50,,4,1"
    assert len(rows) == 2


@pytest.mark.parametrize(
    "level", ["O2", *[pytest.param(level, marks=pytest.mark.soak) for level in ("O0", "O4")]]
)
def test_a_short_run(level, tmp_path):
    arguments = ["--epochs", "1", "--seed", "3", "--device", "cpu"]
    run = runs.run(runs.PYTHON_COMMAND, level, tmp_path / "steps.csv", *arguments)
    assert (run.level, run.language, run.device) == (level, "Python", "cpu")
    assert len(run.steps) == 23
    assert run.skipped_steps == sum(step.skipped for step in run.steps)
    assert (run.skipped_steps > 0) == (level == "O2")
    assert run.steps[-1].loss < run.steps[0].loss


def test_peak_memory_of_a_gpu_is_in_the_summary():
    run = replace(made_up_run("Python"), device="cuda:0")
    assert summary.cells(run)[6] == "100"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_figure(tmp_path, device):
    pytest.importorskip("matplotlib")
    import demo_figure

    pair = [replace(made_up_run(language), device=device) for language in ("C++", "Python")]
    demo_figure.draw([pair], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

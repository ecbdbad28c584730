"""The benchmark of the kernels' tuning parameters, with a fake module."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "python"
sys.path.insert(0, str(BENCHMARKS))

import bench_variants  # noqa: E402
import step_variants  # noqa: E402


class Module:
    """A fake torchamp._C: units of 8,192 are slower, dependent launches make no difference."""

    def __init__(self) -> None:
        self.now = {"unit": 2048, "dependent_launch": False}
        self.history = []

    def tuning(self):
        return dict(self.now)

    def tuning_choices(self):
        return {"unit": [2048, 8192], "dependent_launch": [False, True]}

    def set_tuning(self, **choices):
        self.now.update(choices)
        self.history.append(dict(self.now))

    def run(self) -> None:
        time.sleep(0.004 if self.now["unit"] == 8192 else 0.001)


@pytest.fixture
def module():
    return Module()


def test_one_choice_is_changed_at_a_time_and_the_default_comes_back(module):
    tuning = bench_variants.Tuning(module)
    assert [str(choice) for choice in tuning.choices] == ["unit=8192", "dependent_launch=True"]
    bench_variants.measure_op("check", "made up", module.run, tuning, "cpu", 3)
    assert {tuple(now.values()) for now in module.history} == {
        (2048, False),
        (8192, False),
        (2048, True),
    }
    assert module.now == {"unit": 2048, "dependent_launch": False}


def test_the_default_comes_back_after_an_error(module):
    def run():
        if module.now["unit"] == 8192:
            raise RuntimeError("too many registers")

    with pytest.raises(RuntimeError, match="registers"):
        bench_variants.measure_op("check", "made up", run, bench_variants.Tuning(module), "cpu", 3)
    assert module.now == {"unit": 2048, "dependent_launch": False}


def test_what_is_slower_is_called_slower(module):
    tuning = bench_variants.Tuning(module)
    rows = bench_variants.measure_op("check", "made up", module.run, tuning, "cpu", 5)
    unit = next(row for row in rows if row.setting == "unit=8192")
    assert unit.verdict == "slower" and unit.times_default > 1.5
    assert unit.milliseconds >= 4 and unit.default_ms >= 1


def timing_of(*milliseconds):
    return bench_variants.Timing([SimpleNamespace(milliseconds=each) for each in milliseconds])


@pytest.mark.parametrize(
    "own, default, expected",
    [
        ((1, 1, 1), (2, 2, 2), "faster"),
        ((3, 3, 3), (2, 2, 2), "slower"),
        ((1, 2, 3), (2, 2, 2), "no difference"),
    ],
)
def test_only_samples_apart_make_a_winner(own, default, expected):
    assert bench_variants.verdict(timing_of(*own), timing_of(*default)) == expected


def test_the_summary_has_the_fastest_choice_first():
    def row(setting, times, verdict):
        return bench_variants.Row("check", "w", setting, 1.0, (1, 1), 1.0, (1, 1), times, verdict)

    rows = [
        row("unit=8192", 1.2, "slower"),
        row("unit=8192", 1.2, "no difference"),
        row("dependent_launch=True", 0.5, "faster"),
        row("dependent_launch=True", 0.98, "no difference"),
    ]
    assert bench_variants.summary(rows).splitlines() == [
        "dependent_launch=True: 0.700 x the default's time, faster in 1 and slower in 0 of 2",
        "unit=8192: 1.200 x the default's time, faster in 0 and slower in 1 of 2",
    ]


def test_every_op_runs_on_every_kind_of_workload(module, monkeypatch):
    shapes = [(3,), (40, 5)]
    monkeypatch.setattr(
        bench_variants,
        "WORKLOADS",
        {
            "plain": bench_variants.Workload(shapes),
            "views": bench_variants.Workload(shapes, odd_offsets=True),
        },
    )
    rows = list(bench_variants.measure(module, "cpu", 1))
    assert {(row.op, row.workload) for row in rows} == {
        (op, workload) for op in ("check", "unscale", "step") for workload in ("plain", "views")
    }
    assert len(rows) == 6 * 2
    bench_variants.print_table(rows)


def test_bucket_views_reach_the_ops_misaligned(monkeypatch):
    seen = []
    monkeypatch.setattr(bench_variants.ops, "check", lambda grads, found_inf: seen.extend(grads))
    workload = bench_variants.Workload([(4,), (5,)], odd_offsets=True)
    dict(bench_variants.ops_of(workload, "cpu"))["check"]()
    assert all(grad.data_ptr() % 4 == 2 for grad in seen)
    grads = step_variants.Grads([(4,), (5,)], "cpu", odd_offsets=True)
    assert all(grad.data_ptr() % 4 == 2 for grad in grads.half)
    assert not any(grad.data_ptr() % 4 for grad in grads.single)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_cuda_it_says_so_and_that_is_no_failure():
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "bench_variants.py")], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("bench_variants: not run: there is no CUDA device here")


def test_without_choices_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "has no tuning parameters" in bench_variants.why_not(SimpleNamespace())
    assert bench_variants.why_not(Module()) == ""

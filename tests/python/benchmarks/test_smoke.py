"""Each benchmark runs, on small workloads, and its result becomes a page."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "python"
sys.path.insert(0, str(BENCHMARKS))

import networks  # noqa: E402
import report  # noqa: E402
import workloads  # noqa: E402
from networks import Batch, Task  # noqa: E402

SHAPES = [(3,), (40, 5)]


def tiny_task() -> Task:
    def batch() -> Batch:
        return Batch((torch.randn(16, 8),), (torch.randint(4, (16,)),))

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    return Task(make, batch, 16, "images")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    tables = {"WORKLOADS": SHAPES, "STEP_WORKLOADS": SHAPES, "SMALL": tiny_task()}
    for name, one in tables.items():
        table = vars(networks if name == "SMALL" else workloads)[name]
        for each in list(table):
            monkeypatch.delitem(table, each)
        monkeypatch.setitem(table, "tiny", one)


SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in ("calls", "ops", "step")]


@pytest.mark.parametrize("name", ["training", *SOAK])
def test_a_benchmark_measures_and_its_result_becomes_a_page(name, monkeypatch, tmp_path):
    file = tmp_path / "result.json"
    arguments = ["--device", "cpu", "--repeats", "3", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(BENCHMARKS / f"bench_{name}.py"), run_name="__main__")
    result = json.loads(file.read_text())
    assert result["rows"]
    for row in result["rows"]:
        key = {"calls": "microseconds", "ops": "torchamp_ms"}.get(name, "milliseconds")
        times = row[key].values() if isinstance(row[key], dict) else [row[key]]
        assert times and min(times) > 0
        assert not row.get("not_run")
    page = report.write(result, tmp_path)
    assert page.read_text().startswith("# ")
    pictures = name in ("step", "training") and importlib.util.find_spec("matplotlib") is not None
    assert len(list(tmp_path.glob("*.png"))) == pictures

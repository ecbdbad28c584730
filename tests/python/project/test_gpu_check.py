"""`make gpu-check` without a GPU: how it runs parts, and the scripts that it runs."""

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "gpu_check"
sys.path.insert(0, str(FOLDER))

import run as gpu_check  # noqa: E402
from run import Check, Part  # noqa: E402

DIES_IN_THE_THIRD = """
import os, pytest

@pytest.mark.parametrize("n", [1, 2, 3])
def test_n(n):
    os._exit(3) if n == 3 else pytest.fail("no " * n)
"""


@pytest.fixture
def checks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "OUT", tmp_path)
    monkeypatch.setattr(gpu_check, "FAILURES", tmp_path / "failures.txt")
    monkeypatch.setattr(gpu_check, "CACHE", tmp_path / "kernel_cache")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return Check(tmp_path / "build")


def test_each_part_is_told_and_keeps_its_output(checks, tmp_path, capsys):
    parts = [
        Part("counts", 9, ["sh", "-c", "echo '3 passed, 1 failed'; echo more; exit 2"]),
        Part("sees its environment", 9, ["sh", "-c", "echo $A $TORCHAMP_BUILD_DIR"], {"A": "a"}),
        Part("is missing", 9, ["/no/such/program"]),
    ]
    assert not asyncio.run(checks.run_side_by_side([parts[:1], parts[1:]]))
    told = capsys.readouterr().out
    assert "counts: failed, exit status 2: 3 passed, 1 failed" in told
    assert f"sees its environment: passed: a {tmp_path / 'build'}" in told
    assert "is missing: not run: [Errno 2]" in told
    assert (tmp_path / "counts.txt").read_text().endswith("more\n")
    assert asyncio.run(checks.run_in_turn(parts[1:2]))


def test_a_part_that_hangs_is_stopped_with_its_children(checks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "GRACE", 0.2)
    written = tmp_path / "written"
    hangs = f"trap '' INT; (while :; do echo x; sleep 0.05; done >>{written}) & wait"
    assert not asyncio.run(checks.run(Part("hangs", 0.5, ["sh", "-c", hangs])))
    assert "hangs: stopped after 0.5 s" in capsys.readouterr().out
    size = written.stat().st_size
    time.sleep(0.3)
    assert written.stat().st_size == size


def test_failing_python_tests_are_kept_at_once_and_counted(checks, tmp_path):
    test = tmp_path / "test_it.py"
    test.write_text(DIES_IN_THE_THIRD)
    command = [sys.executable, "-m", "pytest", "-p", "log_failures", "--rootdir", tmp_path, test]
    assert not asyncio.run(checks.run(Part("Python", 60, command)))
    assert "no no" in gpu_check.FAILURES.read_text()
    (line,) = gpu_check.failing_tests()
    assert line.split()[0] == "2" and line.endswith("test_it.py::test_n")


def test_every_script_is_there(tmp_path):
    parts = [*gpu_check.timings(), *(part for lane in gpu_check.lanes(tmp_path) for part in lane)]
    named = [ROOT / word for part in parts for word in map(str, part.command)]
    assert all(path.exists() for path in named if path.suffix == ".py")


@pytest.mark.parametrize("name", ["smoke", "sanitized"])
def test_scripts_run_on_the_cpu(name, python):
    python(str(FOLDER / f"{name}.py"), "cpu", TORCHAMP_KERNELS="aten")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, FOLDER / "run.py"], capture_output=True, text=True)
    assert done.returncode == 1 and "NOTHING WAS RUN" in done.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize(
    "given, wanted",
    [((), ""), (("BUILD=tree", "GPU_CHECK=timings"), '--build "tree" timings')],
)
def test_make_passes_its_options_on(given, wanted):
    given = ["PYTHON=mine", "MAX_JOBS=3", "GTEST_SOURCE=gtest", *given]
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "gpu-check", *given],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    words = done.stdout.replace("\\\n", " ").split()
    command = f'GTEST_SOURCE="gtest" MAX_JOBS=3 mine tests/gpu_check/run.py {wanted}'
    assert words == command.split()

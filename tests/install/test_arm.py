"""torchamp for Linux on ARM, compiled here and run in an emulator, beside this checkout's build."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from installed import ROOT, run

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("arm")]

ARM = ROOT / "build" / "arm"
PROGRAM = pathlib.Path(__file__).parent / "train_on_arm.py"
UNAVAILABLE = 77

#: How many of NEON's instructions each file has at least. Without vectors it has none.
VECTORS = {
    "axpby_kernel": 16,
    "block": 350,
    "float8_kernel": 64,
    "l2norm_kernel": 16,
    "rounding": 32,
    "step_kernel": 900,
    "unscale_kernel": 16,
}


@pytest.fixture(scope="module")
def said() -> str:
    """What build_tools/arm.sh prints."""
    script = subprocess.run(
        ["build_tools/arm.sh"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    if script.returncode == UNAVAILABLE:
        pytest.skip(script.stdout.splitlines()[-1])
    assert script.returncode == 0, script.stdout[-10000:]
    return script.stdout


def test_the_cpp_tests_pass_on_arm(said: str) -> None:
    passed = [int(line.split()[3]) for line in said.splitlines() if "[  PASSED  ]" in line]
    assert len(passed) == 8 and min(passed) > 0, said[-10000:]


def test_every_kernel_gives_the_same_bits_on_arm(said: str) -> None:
    on_arm, here = (ARM / name for name in ("bits", "bits.here"))
    assert len(here.read_text().splitlines()) > 30
    assert on_arm.read_text() == here.read_text()


def test_the_kernels_loops_are_of_vectors_on_arm(said: str) -> None:
    objects = ARM / "tree" / "CMakeFiles" / "torchamp_objects.dir" / "csrc" / "cpu"
    counts = {}
    for name in VECTORS:
        code = run("aarch64-linux-gnu-objdump", "-d", objects / f"{name}.cpp.o")
        counts[name] = len(re.findall(r"\tv\d+\.(?:2d|4s|8h|16b)", code))
    assert all(counts[name] >= least for name, least in VECTORS.items()), counts


def test_it_trains_on_arm_and_files_are_exchanged(
    said: str, built_tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    here = [sys.executable, PROGRAM, tmp_path / "here"]
    path = {"PYTHONPATH": built_tree / "python"}
    first = json.loads(run(*here, **path))
    on_arm = json.loads(run(ARM / "python", PROGRAM, tmp_path / "on_arm", tmp_path / "here"))
    then = json.loads(run(*here, tmp_path / "on_arm", **path))
    assert on_arm["kernels"] == "neon"
    for level, trained in on_arm["trained"].items():
        assert trained["losses"][-1] < trained["losses"][0] / 5, level
        assert on_arm["loaded"][level] == first["trained"][level]["digest"], level
        assert then["loaded"][level] == trained["digest"], level

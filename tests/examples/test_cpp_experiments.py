"""The C++ twins of the experiments: tiny runs of each, whose CSV has the columns of Python's."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from cpp_programs import run_cpp
from installed import example

PYTHON = Path(__file__).parents[2] / "examples" / "python"

pytestmark = pytest.mark.soak


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fields(module: str, row: str) -> list[str]:
    """Of the Python experiment's CSV."""
    pytest.importorskip("matplotlib")
    code = f"import {module}; print(*{module}.{row}._fields)"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=PYTHON
    ).stdout.split()


def summary(folder: Path) -> str:
    text = (folder / "summary.md").read_text()
    assert text.startswith("# ") and "LibTorch 2." in text and "on a CPU" in text
    return text


def test_conv_noise(tmp_path: Path) -> None:
    sizes = "--images 8 --size 16 --channels 4 --batch 4 --epochs 1 --repeats 2 --levels O0 O1 O5"
    done = run_cpp("conv_noise", *sizes.split(), "--out", tmp_path)
    assert [line[:2] for line in done.stdout.splitlines() if "epoch 1/1" in line] == [
        *("O0", "O1", "O5", "O0", "O1", "O5")
    ]
    rows = read(tmp_path / "conv_noise.csv")
    assert list(rows[0]) == fields("conv_noise", "Epoch")
    assert [(row["level"], row["epoch"]) for row in rows] == [
        (level, epoch) for level in ("O0", "O1", "O5") for epoch in ("1", "2")
    ]
    assert "O5 takes" in summary(tmp_path)


@pytest.mark.parametrize(("threads", "autocast"), [(2, "float32"), (0, "float16")])
def test_native_loop(tmp_path: Path, threads: int, autocast: str) -> None:
    """autocast reaches no other thread, O1 does."""
    sizes = f"--steps 4 --width 16 --batch 32 --tolerance 1 --data-parallel {threads}"
    run_cpp("native_loop", *sizes.split(), "--out", tmp_path)
    written = read(tmp_path / "native_loop.csv")
    assert list(written[0]) == fields("native_loop", "Row")
    rows = {row["style"]: row for row in written}
    inside = {style: row["inside"] for style, row in rows.items()}
    assert inside == {
        "fp32": "float32",
        "autocast": autocast,
        "autocast+scaler": autocast,
        "torchamp": "float16",
    }


def test_compare(tmp_path: Path) -> None:
    """O2 has 16-bit weights, float32 grads and masters; O1 and the GradScaler's loop agree."""
    run_cpp("compare", "--epochs", 1, "--repeats", 1, "--out", tmp_path)
    rows = read(tmp_path / "compare.csv")
    assert list(rows[0]) == fields("compare", "Epoch")
    losses = {row["arm"]: float(row["loss"]) for row in rows}
    assert losses["torchamp-O1"] == pytest.approx(losses["native"], abs=1e-2)
    lines = {
        line.split("|")[1].strip(): line.split("|")[2:-1]
        for line in summary(tmp_path).split("bytes per parameter")[1].splitlines()
        if "|" in line
    }
    float32, o2 = ([float(cell) for cell in lines[arm]] for arm in ("fp32", "torchamp-O2"))
    assert float32[1] == o2[1] == 4.0  # grads: unscaled, what the step uses
    assert float32[2] == 0.0 and 3.0 < o2[2] <= 4.0  # masters of all but batch norms
    assert o2[4] < 0.8 * float32[4]  # activations


def test_vgg_sweep(tmp_path: Path) -> None:
    sizes = "--batch 8 16 --epochs 1 --images 32 --width 1/32 --levels O0 O2 O5"
    run_cpp("vgg_sweep", *sizes.split(), "--out", tmp_path)
    rows = read(tmp_path / "runs.csv")
    assert list(rows[0]) == fields("vgg_sweep", "Row")
    assert [(row["level"], row["batch"]) for row in rows] == [
        (level, batch) for batch in ("8", "16") for level in ("O0", "O2", "O5")
    ]
    assert "images/s" in summary(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--levels O9", "expected --levels to be of O0 O1 O2 O4 O5, got O9"),
        ("--preset large", "expected --preset to be of small original, got large"),
        ("--levels", "expected one of"),
        ("--images 8 --size 16 --channels 4 --batch 4 --epochs 1 --tolerance 0 --levels O0 O5",
         "O5: expected a loss within 0% of O0's"),
    ],
)  # fmt: skip
def test_status_1(tmp_path: Path, arguments: str, message: str) -> None:
    """Of wrong options, and of losses that disagree."""
    command = [example("conv_noise"), *arguments.split(), "--device", "cpu", "--out", tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr

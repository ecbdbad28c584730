"""The experiments of examples/python: a tiny run of each, and their checks of the results."""

from __future__ import annotations

import argparse
import csv
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

EXPERIMENTS = Path(__file__).parents[3] / "examples" / "python"
sys.path.insert(0, str(EXPERIMENTS))

import char_gpt  # noqa: E402
import compare  # noqa: E402
import conv_noise  # noqa: E402
import lab  # noqa: E402
import native_loop  # noqa: E402
import plot_ranges  # noqa: E402
import vgg  # noqa: E402
import vgg_sweep  # noqa: E402
import which_precision  # noqa: E402

from torchamp import amp  # noqa: E402

PNG = b"\x89PNG"


def run(python, folder: Path, name: str, options: str, expect: int = 0) -> str:
    """Runs an experiment on the CPU, and returns what it printed."""
    script = str(EXPERIMENTS / f"{name}.py")
    common = ["--device", "cpu", "--out", str(folder)]
    return python(script, *options.split(), *common, expect=expect)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_written(folder: Path, *figures: str) -> None:
    summary = (folder / "summary.md").read_text()
    assert summary.startswith("# ") and "torch 2." in summary and "| " in summary
    for figure in figures:
        assert (folder / figure).read_bytes().startswith(PNG)


def test_conv_noise(python, tmp_path):
    sizes = "--levels O0 O1 O4 --images 8 --size 16 --channels 4 --batch 4 --epochs 2"
    printed = run(python, tmp_path, "conv_noise", sizes)
    order = re.findall(r"^(O\d)  epoch (\d)/2", printed, re.MULTILINE)
    assert order == [(level, epoch) for epoch in "12" for level in ("O0", "O1", "O4")]
    assert "Mixed precision" in printed
    rows = read(tmp_path / "conv_noise.csv")
    assert list(rows[0]) == list(conv_noise.Epoch._fields)
    assert [(row["level"], row["epoch"]) for row in rows] == [
        (level, epoch) for level in ("O0", "O1", "O4") for epoch in ("1", "2")
    ]
    assert_written(tmp_path, "conv_noise.png")


@pytest.mark.soak
@pytest.mark.soak
def test_char_gpt(python, tmp_path):
    arms = ["float32", "torch.amp", "O2", "O5"]
    run(python, tmp_path, "char_gpt", f"--steps 20 --seeds 2 --arms {' '.join(arms)}")
    rows = [char_gpt.Evaluation(**row) for row in read(tmp_path / "char_gpt.csv")]
    assert {(row.arm, row.seed) for row in rows} == {(arm, seed) for arm in arms for seed in "12"}
    assert [int(row.step) for row in rows[:10]] == list(range(2, 21, 2))
    first, last = (
        {(row.arm, row.seed): float(row.loss) for row in rows if row.step == step}
        for step in ("2", "20")
    )
    assert all(last[run_] < first[run_] for run_ in first)
    bytes_ = {row.arm: float(row.mib) for row in rows}
    assert bytes_["O2"] == bytes_["O5"] < bytes_["torch.amp"] < bytes_["float32"]
    assert_written(tmp_path, "char_gpt.png")


def test_compare(python, tmp_path):
    arms = ["fp32", "native", "apex", "torchamp-O1", "torchamp-O5"]
    run(python, tmp_path, "compare", f"--arms {' '.join(arms)} --epochs 1 --repeats 1")
    rows = read(tmp_path / "compare.csv")
    assert list(rows[0]) == list(compare.Epoch._fields)
    assert [row["arm"] for row in rows] == arms
    assert_written(tmp_path, "compare.png", "rounding.png")


@pytest.mark.parametrize(("threads", "autocast"), [(0, "float16"), (2, "float32")])
def test_native_loop(python, tmp_path, threads, autocast):
    run(python, tmp_path, "native_loop", f"--steps 5 --batch 64 --data-parallel {threads}")
    rows = read(tmp_path / "native_loop.csv")
    assert list(rows[0]) == list(native_loop.Row._fields)
    assert {row["style"]: row["inside"] for row in rows} == {
        "fp32": "float32",
        "autocast": autocast,
        "autocast+scaler": autocast,
        "torchamp": "float16",
    }
    assert_written(tmp_path, "native_loop.png")


@pytest.mark.soak
def test_vgg_sweep(python, tmp_path):
    sizes = "--levels O0 O5 --batch 8 16 --images 16 --epochs 2 --repeats 2 --width 1/32"
    run(python, tmp_path, "vgg_sweep", f"{sizes} --data synthetic")
    rows = read(tmp_path / "runs.csv")
    assert list(rows[0]) == list(vgg_sweep.Row._fields)
    assert len(rows) == 2 * 2 * 2 * 2
    assert {(row["method"], row["level"]) for row in rows} == {("fp32", "O0"), ("amp", "O5")}
    assert_written(tmp_path, "time.png", "memory.png", "accuracy.png")


@pytest.mark.soak
def test_vgg_sweep_takes_no_batch_of_more_than_all_images(python, tmp_path):
    printed = run(python, tmp_path, "vgg_sweep", "--images 16 --batch 32", expect=1)
    assert "--batch: expected at most the 16 images, got 32" in printed


@pytest.mark.parametrize("form", ["binary", "pickle"])
def test_cifar10(tmp_path, form):
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for place, name in enumerate(names):
        pixels = np.full((2, 3 * 32 * 32), 51 * place, dtype=np.uint8)
        labels = [place, 9]
        if form == "binary":
            rows = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1)
            rows.tofile(tmp_path / f"{name}.bin")
        else:
            (tmp_path / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}))
    train, test = vgg.load_images(["cifar10", str(tmp_path)], 8, torch.device("cpu"))
    assert train.images.shape == (8, 3, 32, 32) and test.images.shape == (2, 3, 32, 32)
    assert train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9]
    assert train.images[-1].unique().tolist() == pytest.approx([0.6])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("conv_noise", "--levels O0 O4 --images 4 --size 8 --channels 2 --batch 4 --epochs 1"),
        ("compare", "--arms native --epochs 1 --repeats 1"),
        ("native_loop", "--style torchamp --steps 1"),
        ("vgg_sweep", "--levels O0 --batch 4 --images 4 --epochs 1 --width 1/64"),
        ("char_gpt", "--steps 1 --arms O5"),
    ],
)
def test_arms_that_differ_give_status_1(python, tmp_path, name, options):
    program = "\n".join(
        [
            f"import sys; sys.path.insert(0, {str(EXPERIMENTS)!r})",
            f"import {name}",
            f"{name}.LOSS_TOLERANCE = -1",
            f"sys.exit({name}.main())",
        ]
    )
    arguments = [*options.split(), "--device", "cpu", "--out", str(tmp_path)]
    printed = python("-c", program, *arguments, expect=1)
    problem = printed.splitlines()[-1]
    assert "expected a" in problem and "got" in problem
    assert (tmp_path / "summary.md").read_text().endswith(f"{problem}\n")


def test_tf32_is_an_arm_where_the_device_has_it(monkeypatch):
    cpu, names = torch.device("cpu"), ["O0", "O1"]
    assert lab.chosen_arms(None, names, cpu) == names
    with pytest.raises(SystemExit, match="expected a GPU of compute capability 8.0"):
        lab.chosen_arms(["O0", "TF32"], names, cpu)
    monkeypatch.setattr(lab, "has_tf32", lambda device: True)
    assert lab.chosen_arms(None, names, cpu) == ["O0", "TF32", "O1"]
    assert lab.chosen_arms(["O1"], names, cpu) == ["O1"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("experiment", "options"),
    [
        (conv_noise, "--images 8 --size 16 --channels 4 --batch 4 --epochs 1"),
        (compare, "--epochs 1 --repeats 1"),
        (vgg_sweep, "--batch 8 --epochs 1 --images 16 --width 1/32"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_tf32_arm_trains(monkeypatch, tmp_path, experiment, options):
    """As float32 does on a CPU, which is taken for one that has it."""
    monkeypatch.setattr(lab, "has_tf32", lambda device: True)
    arms = ["--arms", "fp32"] if experiment is compare else ["--levels", "O0"]
    command = [experiment.__name__, *options.split(), *arms, "TF32"]
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu", "--out", str(tmp_path)])
    assert experiment.main() == 0
    first, second = (row for row in read(next(tmp_path.glob("*.csv"))) if row["epoch"] == "1")
    assert second.get("level", second.get("arm")) == "TF32"
    assert first["loss"] == second["loss"]


@pytest.mark.soak
@pytest.mark.parametrize("model", ["mlp", "conv", "transformer"])
def test_which_precision_of_healthy_models(python, tmp_path, model):
    printed = run(python, tmp_path, "which_precision", f"--model {model} --steps 2 --width 16")
    rows = read(tmp_path / "which_precision.csv")
    assert list(rows[0]) == list(which_precision.Row._fields)
    assert [row["level"] for row in rows] == ["fp32", "O1", "O2", "O3", "O4", "O5"]
    assert {row["fits"] for row in rows} == {"True"}
    assert re.search(r"Recommended: O[145]|No level is faster", printed)
    assert "TF32: n/a on this device" in printed
    assert_written(tmp_path, "which_precision.png", "range.png", "grads.png")


def test_nothing_covers_anything_in_the_plot_of_grads():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    report = amp.preflight(model, torch.randn(8, 4), lambda output: 1e-3 * output.square().sum())
    figure = plot_ranges.draw_grads(report)
    figure.canvas.draw()
    left, right = figure.axes
    assert left.get_tightbbox().x1 <= right.get_tightbbox().x0
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1 - 1


def test_quantiles_of_exponents():
    exponents = plot_ranges.Counter({3: 1, -7: 98, 5: 1})
    found = [plot_ranges.quantile(exponents, share) for share in (0.0, 0.05, 0.95, 0.99, 1.0)]
    assert found == [-7, -7, -7, 3, 5]


@pytest.mark.soak
def test_which_precision_times_its_arms_in_turn(monkeypatch):
    trained, train = [], which_precision.train

    def record(problem, level, reason, times, arguments):
        row = train(problem, level, reason, times, arguments)
        trained.append((level, len(times)))
        return row

    monkeypatch.setattr(which_precision, "train", record)
    cpu = torch.device("cpu")
    problem = which_precision.MODELS["mlp"](8, cpu)
    report = amp.preflight(problem.model, problem.batch, problem.loss_fn)
    which_precision.measure(problem, report, argparse.Namespace(device=cpu, steps=2))
    arms = ["fp32", "O1", "O2", "O3", "O4", "O5"]
    assert trained == [(arm, 2 * count) for count in (1, 2, 3) for arm in arms]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("trouble", "fails", "reason"),
    [
        ("range", ["O1", "O2", "O3"], "float16 ends at 65504"),
        ("precision", ["O4", "O5"], "precision: outputs are"),
        ("linalg", ["O2", "O3", "O5"], "linalg_cholesky_ex of the model raises"),
    ],
)
def test_which_precision_names_what_fails(python, tmp_path, trouble, fails, reason):
    options = f"--trouble {trouble} --steps 2 --width 16"
    printed = run(python, tmp_path, "which_precision", options)
    rows = read(tmp_path / "which_precision.csv")
    assert [row["level"] for row in rows if row["fits"] == "False"] == fails
    assert all(reason in row["reason"] for row in rows if row["fits"] == "False")
    assert f"{fails[0]}: does not fit: " in printed


@pytest.mark.soak
def test_which_precision_of_a_model_of_the_user_s(python, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def make(device):\n"
        "    model = torch.nn.Linear(4, 2).to(device)\n"
        "    return model, torch.ones(3, 4, device=device), lambda y: y.pow(2).mean() * 1e9\n"
    )
    place = f"--model {tmp_path / 'mine.py'}:make --steps 2"
    assert "does not fit" in run(python, tmp_path / "out", "which_precision", place)
    assert "expected mlp, conv, transformer or FILE:function, got 'vit'" in run(
        python, tmp_path / "out", "which_precision", "--model vit", expect=1
    )

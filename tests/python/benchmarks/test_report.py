import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

import report  # noqa: E402

OPS = {
    "machine": {"device": "NVIDIA H200", "torch": "2.11.0", "date": "2026-11-26"},
    "rows": [
        {
            "op": "check, float16",
            "workload": "tiny_10000x64",
            "bytes_per_element": 2,
            "torchamp_ms": 0.02,
            "torch_ms": 0.4,
            "copy_ms": 0.01,
            "times_torch": 20.0,
            "of_copy": 0.5,
            "quartiles": {"torchamp": [0.019, 0.021]},
            "host_ms": {"torchamp": 0.004},
            "not_queued_ahead": ["torch"],
        }
    ],
}
STEPS = {
    "machine": {"device": "AMD EPYC", "torch": "2.13.0", "date": "2026-11-26"},
    "rows": [
        {
            "workload": "gpt2_124m",
            "parameters": 124_439_808,
            "milliseconds": {"one pass": 100.0, "bare copy": 95.0},
            "quartiles": {"one pass": [99.0, 101.0], "bare copy": [94.0, 96.0]},
            "host_ms": {"one pass": None, "bare copy": None},
            "one_pass_ms": {"one pass": 100.0, "bare copy": 98.0},
            "times_one_pass": {"one pass": 1.0, "bare copy": 95.0 / 98.0},
            "bytes_per_parameter": {"one pass": 16.0},
            "not_queued_ahead": [],
            "not_run": "out of memory at master grads materialized",
        },
        {
            "workload": "llama_7b",
            "parameters": 6_738_415_616,
            "milliseconds": {},
            "times_one_pass": {},
            "not_queued_ahead": [],
            "not_run": "two variants need 404.3 GB, 79.1 GB are free",
        },
    ],
}
TRAININGS = {
    "machine": {"device": "NVIDIA H100", "torch": "2.11.0", "date": "2026-11-26"},
    "rows": [
        {
            "network": "gpt2_124m_2k",
            "items": 2048,
            "unit": "tokens",
            "base": "torch.amp, float16",
            "parameters": 124_439_808,
            "rounds": 15,
            "milliseconds": {"O2": 20.0, "torch.amp, float16": 25.0},
            "quartiles": {"O2": [19.5, 20.5], "torch.amp, float16": [24.0, 26.0]},
            "host_ms": {"O2": 9.0, "torch.amp, float16": 12.0},
            "times_as_fast_as_torch_amp": {"O2": 1.25, "torch.amp, float16": 1.0},
            "times_as_fast_as_float32": {},
            "items_per_second": {"O2": 102_400.0, "torch.amp, float16": 81_920.0},
            "peak_bytes": {"O2": 4_000_000_000, "torch.amp, float16": None},
            "skipped_steps": {"O2": 1, "torch.amp, float16": 0},
            "left_out": {"O1": "its loss went from 11.000 to nan"},
            "not_run": "",
        },
        {
            "network": "lstm",
            "items": 4480,
            "unit": "tokens",
            "left_out": {},
            "items_per_second": {},
            "not_run": "the time limit of 100 s was reached",
        },
    ],
}
APEX = {
    "machine": {"device": "NVIDIA H200", "date": "2026-11-26"},
    "rows": [
        {
            "workload": "gpt2_124m",
            "parameters": 124_439_808,
            "tensors": 148,
            "rounds": 15,
            "milliseconds": {"O2, FusedAdam": 1.0, "apex O2, FusedAdam": 2.5},
            "quartiles": {"O2, FusedAdam": [0.9, 1.1], "apex O2, FusedAdam": [2.2, 2.8]},
            "times_torchamp": {"O2, FusedAdam": 1.0, "apex O2, FusedAdam": 2.5},
            "device_ms": {"O2, FusedAdam": 0.9, "apex O2, FusedAdam": None},
            "host_ms": {"O2, FusedAdam": 0.4, "apex O2, FusedAdam": 2.3},
            "peak_bytes_per_parameter": {"O2, FusedAdam": 16.1, "apex O2, FusedAdam": None},
        }
    ],
}
VARIANTS = {
    "machine": {"device": "NVIDIA H100", "date": "2026-11-26"},
    "rows": [
        {
            "op": "check",
            "workload": "resnet50",
            "setting": "unit=8192",
            "milliseconds": 0.0182,
            "quartiles": [0.0181, 0.0183],
            "default_ms": 0.02,
            "default_quartiles": [0.0199, 0.0201],
            "times_default": 0.91,
            "verdict": "faster",
        }
    ],
}


def lines(path: Path) -> list[list[str]]:
    """The cells of its tables, and its other lines."""
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in path.read_text().splitlines()]  # fmt: skip


def test_ops_have_bandwidth_ratios_and_the_hosts_time(tmp_path):
    path = report.write(OPS, tmp_path)
    assert path.name == "ops-nvidia-h200-2026-11-26.md"
    text = path.read_text()
    assert "# The ops on NVIDIA H200" in text and "- torch: 2.11.0" in text
    assert ["check, float16", "tiny_10000x64", "0.020", "0.019–0.021", "0.004", "64",
            "0.010", "50%", "0.400 \\*", "20.00"] in lines(path)  # fmt: skip
    assert "includes host time" in text
    assert json.loads(path.with_suffix(".json").read_text()) == OPS


def test_steps_have_quartiles_and_what_was_not_run(tmp_path):
    path = report.write(STEPS, tmp_path)
    assert path.name.startswith("step-amd-epyc-20")
    assert "# Optimizer steps on AMD EPYC" in path.read_text()
    assert ["one pass", "100.00", "99.00–101.00", "100.00", "1.00", "–", "16"] in lines(path)
    assert ["bare copy", "95.00", "94.00–96.00", "98.00", "0.97", "–", "–"] in lines(path)
    assert ["Not run: out of memory at master grads materialized."] in lines(path)
    assert ["Not run: two variants need 404.3 GB, 79.1 GB are free."] in lines(path)
    assert "includes host time" not in path.read_text()


def test_trainings_have_both_ratios_and_what_was_left_out(tmp_path):
    path = report.write(TRAININGS, tmp_path)
    assert path.name.startswith("training-nvidia-h100-20")
    assert ["O2", "20.00", "19.50–20.50", "9.00", "1.25", "–", "102,400", "4.00", "1"] in lines(
        path
    )
    assert ["- O1, left out: its loss went from 11.000 to nan"] in lines(path)
    assert ["Not run: the time limit of 100 s was reached."] in lines(path)


def test_fast_steps_have_a_third_decimal(tmp_path):
    row = {**STEPS["rows"][0], "one_pass_ms": {"one pass": 0.98, "bare copy": 0.98}}
    path = report.write({**STEPS, "rows": [row]}, tmp_path)
    assert ["bare copy", "95.000", "94.000–96.000", "0.980", "0.97", "–", "–"] in lines(path)


def test_steps_beside_apex_have_the_device_s_time(tmp_path):
    path = report.write(APEX, tmp_path)
    assert path.name == "apex-nvidia-h200-2026-11-26.md"
    assert ["O2, FusedAdam", "1.000", "0.900–1.100", "1.00", "0.900", "0.400", "16.1"] in lines(
        path
    )
    assert ["apex O2, FusedAdam", "2.500", "2.200–2.800", "2.50", "–", "2.300", "–"] in lines(path)


def test_settings_have_a_verdict(tmp_path):
    path = report.write(VARIANTS, tmp_path)
    assert path.name.startswith("variants-nvidia-h100-20")
    assert ["check", "resnet50", "unit=8192", "faster", "0.910", "0.0182", "0.0181–0.0183",
            "0.0200", "0.0199–0.0201"] in lines(path)  # fmt: skip


@pytest.mark.parametrize("result", [STEPS, TRAININGS, APEX], ids=["steps", "trainings", "apex"])
def test_each_workload_has_a_picture(tmp_path, result):
    pytest.importorskip("matplotlib")
    path = report.write(result, tmp_path)
    (picture,) = tmp_path.glob("*.png")  # of the one that was run
    assert picture.name.startswith(f"{path.stem}-gpt2_124m")
    assert f"]({picture.name})" in path.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")

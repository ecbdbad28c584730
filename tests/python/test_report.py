import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "python"))

import report  # noqa: E402

RESULT = {
    "machine": {"device": "NVIDIA H200", "torch": "2.11.0"},
    "rows": [
        {
            "op": "check, float16",
            "workload": "tiny_10000x64",
            "bytes_per_element": 2,
            "torchamp_ms": 0.02,
            "torch_ms": 0.4,
            "copy_ms": 0.01,
        }
    ],
}


def test_report_gives_bandwidth_and_ratios(tmp_path):
    path = report.write(RESULT, tmp_path)
    assert path.name.startswith("ops-nvidia-h200-20") and path.suffix == ".md"
    text = path.read_text()
    assert "# The ops on NVIDIA H200" in text and "- torch: 2.11.0" in text
    assert "| check, float16 | tiny_10000x64 | 0.020 | 64 | 50% | 20.0 |" in text
    assert json.loads(path.with_suffix(".json").read_text()) == RESULT


STEPS = {
    "machine": {"device": "AMD EPYC", "torch": "2.13.0"},
    "rows": [
        {
            "workload": "gpt2_124m",
            "parameters": 124_439_808,
            "milliseconds": {"one pass": 100.0, "bare copy": 95.0},
            "times_one_pass": {"one pass": 1.0, "bare copy": 0.95},
            "bytes_per_parameter": {"one pass": 16.0},
        }
    ],
}


def test_report_of_steps_has_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = report.write(STEPS, tmp_path)
    assert path.name.startswith("step-amd-epyc-20")
    text = path.read_text()
    assert "# Whole steps on AMD EPYC" in text
    assert "| one pass | 100.00 | 1.00 | 16 |" in text
    assert "| bare copy | 95.00 | 0.95 | – |" in text
    assert path.with_suffix(".png").name in text
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

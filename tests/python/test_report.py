import json
import sys
from pathlib import Path

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

"""Makes benchmarks/results/ops-<device>-<date>.{json,md} of what bench_ops.py wrote.

python benchmarks/python/report.py out/bench/ops_python.json [RESULTS_FOLDER]
"""

import datetime
import json
import pathlib
import re
import sys
from math import prod

from workloads import WORKLOADS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def gigabytes_per_second(row: dict, elements: int) -> float:
    return row["bytes_per_element"] * elements / row["torchamp_ms"] / 1e6


def elements_of(workload: str) -> int:
    return sum(prod(shape) for shape in WORKLOADS[workload])


def table(rows: list) -> str:
    """The rows in Markdown, with the bandwidth that each op reaches."""
    lines = [
        "| op | workload | torchamp, ms | GB/s | of a copy | times torch |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        bandwidth = gigabytes_per_second(row, elements_of(row["workload"]))
        lines.append(
            f"| {row['op']} | {row['workload']} | {row['torchamp_ms']:.3f} | {bandwidth:.0f} "
            f"| {row['copy_ms'] / row['torchamp_ms']:.0%} "
            f"| {row['torch_ms'] / row['torchamp_ms']:.1f} |"
        )
    return "\n".join(lines)


def write(result: dict, folder: pathlib.Path) -> pathlib.Path:
    """Writes both files and returns the path of the Markdown one."""
    machine = result["machine"]
    device = re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"ops-{device}-{datetime.date.today()}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    text = f"# The ops on {machine['device']}\n\n{facts}\n\n{table(result['rows'])}\n"
    stem.with_suffix(".md").write_text(text)
    return stem.with_suffix(".md")


def main() -> None:
    folder = sys.argv[2] if len(sys.argv) > 2 else ROOT / "benchmarks" / "results"
    path = write(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(folder))
    print(path.read_text())
    print(f"written to {path} and beside it")


if __name__ == "__main__":
    main()

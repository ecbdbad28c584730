"""Makes benchmarks/results/<ops or step>-<device>-<date>.{json,md} of what a benchmark wrote; of
whole steps a picture too, where matplotlib is.

python benchmarks/python/report.py out/bench/step_python.json [RESULTS_FOLDER]
"""

import datetime
import importlib.util
import json
import pathlib
import re
import sys

from workloads import WORKLOADS, count_elements

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TITLES = {"ops": "The ops", "step": "Whole steps"}


def kind_of(result: dict) -> str:
    """Which benchmark wrote it."""
    return "ops" if "op" in result["rows"][0] else "step"


def gigabytes_per_second(row: dict, elements: int) -> float:
    return row["bytes_per_element"] * elements / row["torchamp_ms"] / 1e6


def ops_table(rows: list[dict]) -> str:
    """The rows in Markdown, with the bandwidth that each op reaches."""
    lines = [
        "| op | workload | torchamp, ms | GB/s | of a copy | times torch |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        bandwidth = gigabytes_per_second(row, count_elements(WORKLOADS[row["workload"]]))
        lines.append(
            f"| {row['op']} | {row['workload']} | {row['torchamp_ms']:.3f} | {bandwidth:.0f} "
            f"| {row['copy_ms'] / row['torchamp_ms']:.0%} "
            f"| {row['torch_ms'] / row['torchamp_ms']:.1f} |"
        )
    return "\n".join(lines)


def step_table(rows: list[dict]) -> str:
    """A table in Markdown for each workload."""
    return "\n\n".join(map(workload_table, rows))


def workload_table(row: dict) -> str:
    lines = [
        f"## {row['workload']}, {row['parameters']:,} parameters",
        "",
        "| step | ms | of one pass | bytes a parameter |",
        "|---|--:|--:|--:|",
    ]
    for name, milliseconds in row["milliseconds"].items():
        size = row["bytes_per_parameter"].get(name)
        kept = "–" if size is None else f"{size:.0f}"
        times = row["times_one_pass"][name]
        lines.append(f"| {name} | {milliseconds:.2f} | {times:.2f} | {kept} |")
    return "\n".join(lines)


def draw(rows: list[dict], title: str, path: pathlib.Path) -> None:
    """A panel of bars for each workload."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8 * len(rows)), layout="constrained")
    figure.suptitle(title)
    for row, axes in zip(rows, figure.subplots(len(rows), squeeze=False)[:, 0]):
        names = list(row["milliseconds"])[::-1]
        bars = axes.barh(names, [row["milliseconds"][name] for name in names])
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.margins(x=0.12)
        axes.set(title=f"{row['workload']}: a step's milliseconds, less is better")
    figure.savefig(path, dpi=120)


def write(result: dict, folder: pathlib.Path) -> pathlib.Path:
    """Writes the files and returns the path of the Markdown one."""
    machine, kind = result["machine"], kind_of(result)
    device = re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{kind}-{device}-{datetime.date.today()}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    title = f"{TITLES[kind]} on {machine['device']}"
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    body = ops_table(result["rows"]) if kind == "ops" else step_table(result["rows"])
    if kind == "step" and importlib.util.find_spec("matplotlib"):
        draw(result["rows"], title, stem.with_suffix(".png"))
        body = f"![the same as bars]({stem.name}.png)\n\n{body}"
    stem.with_suffix(".md").write_text(f"# {title}\n\n{facts}\n\n{body}\n")
    return stem.with_suffix(".md")


def main() -> None:
    folder = sys.argv[2] if len(sys.argv) > 2 else ROOT / "benchmarks" / "results"
    path = write(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(folder))
    print(path.read_text())
    print(f"written to {path} and beside it")


if __name__ == "__main__":
    main()

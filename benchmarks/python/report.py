"""Writes benchmarks/results/<benchmark>-<device>-<date>.{json,md} from a benchmark's JSON. For
steps and training iterations also draws pictures, if matplotlib is installed. The date is that of
the measurement.

python benchmarks/python/report.py out/bench/step_python.json [RESULTS_FOLDER]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from report_figures import Panel, apex_panels, draw, step_panels, training_panels
from report_tables import apex_tables, calls_table, ops_table, step_tables, training_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Kind:
    """A benchmark. key: a field that only its rows have."""

    name: str
    key: str
    title: str
    tables: Callable[[list[dict]], str]
    panels: Callable[[list[dict]], list[Panel]] | None = None


KINDS = (
    Kind("calls", "plain_us", "Calls of optimizers", calls_table),
    Kind("ops", "torchamp_ms", "The ops", ops_table),
    Kind("step", "times_one_pass", "Optimizer steps", step_tables, step_panels),
    Kind("training", "network", "Training iterations", training_tables, training_panels),
    Kind("apex", "times_torchamp", "Steps beside NVIDIA apex", apex_tables, apex_panels),
)


def kind_of(result: dict) -> Kind:
    """The benchmark that wrote the result."""
    return next(kind for kind in KINDS if kind.key in result["rows"][0])


def pictures_of(result: dict, kind: Kind, title: str, stem: pathlib.Path) -> list[str]:
    """Draws a picture for each panel, and returns them as Markdown."""
    if kind.panels is None or not importlib.util.find_spec("matplotlib"):
        return []
    pictures = []
    for panel in kind.panels(result["rows"]):
        path = stem.with_name(f"{stem.name}-{panel.name}.png")
        draw(panel, title, path)
        pictures.append(f"![{panel.title}, relative to {panel.base}]({path.name})")
    return pictures


def write(result: dict, folder: pathlib.Path) -> pathlib.Path:
    """Writes the files and returns the path of the Markdown file."""
    machine, kind = result["machine"], kind_of(result)
    device = re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{kind.name}-{device}-{machine['date']}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    title = f"{kind.title} on {machine['device']}"
    facts = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    parts = [f"# {title}", facts, kind.tables(result["rows"])]
    parts += pictures_of(result, kind, title, stem)
    stem.with_suffix(".md").write_text("\n\n".join(parts) + "\n")
    return stem.with_suffix(".md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=pathlib.Path, help="as out/bench/step_python.json")
    parser.add_argument(
        "folder", nargs="?", type=pathlib.Path, default=ROOT / "benchmarks" / "results"
    )
    arguments = parser.parse_args()
    path = write(json.loads(arguments.json.read_text()), arguments.folder)
    print(path.read_text())
    print(f"written to {path} and the files of the same name")


if __name__ == "__main__":
    main()

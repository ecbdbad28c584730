"""What a benchmark's command line does: measure, print, and write JSON."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import torchamp


def processor() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine(device: str) -> dict[str, object]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "torchamp": torchamp.__version__,
        "kernels": torchamp.build_info()["kernels"],
    }


def run(
    description: str,
    measure: Callable[[str, int], list[Any]],
    print_table: Callable[[list[Any]], None],
) -> None:
    """Calls measure(device, repeats) for dataclasses, one a row."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    rows = measure(arguments.device, arguments.repeats)
    print_table(rows)
    if arguments.json:
        result = {"machine": machine(arguments.device), "rows": [asdict(row) for row in rows]}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)

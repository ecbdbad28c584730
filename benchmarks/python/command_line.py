"""The command line of a benchmark: measures, prints, and writes JSON."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import torchamp

NOT_QUEUED_AHEAD = (
    "* includes host time: the work could not be queued ahead, because it waits for the device or "
    "launches more than the driver queues"
)


def processor() -> str:
    """The processor's name if Linux reports it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


#: Instruction sets that make 16-bit arithmetic fast.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def instructions() -> str:
    """The INSTRUCTIONS that the processor has, as reported by Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return " ".join(name for name in INSTRUCTIONS if name in words)


def printed(*command: str) -> str:
    """A command's output, if it is here and succeeds."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return "unknown"


def driver() -> str:
    return printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def machine(device: str) -> dict[str, object]:
    on_card = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_card else processor(),
        **({"driver": driver()} if on_card else {"instructions": instructions()}),
        "threads": torch.get_num_threads(),
        "load": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start",
        "torch": torch.__version__,
        "torchamp": torchamp.__version__,
        "kernels": torchamp.build_info()["kernels"],
        "commit": printed("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "date": str(datetime.date.today()),
    }


def write(path: str, facts: dict[str, object], rows: list[Any]) -> None:
    result = {"machine": facts, "rows": [asdict(row) for row in rows]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


def run(
    description: str,
    measure: Callable[..., Iterable[Any]],
    print_table: Callable[[list[Any]], None],
    **options: dict[str, Any],
) -> None:
    """Calls measure(device, repeats, **options), which yields a dataclass per row, and writes each
    row immediately. options: argparse keywords of additional arguments."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", help="also write the rows to this file")
    for name, words in options.items():
        parser.add_argument(f"--{name}", **words)
    arguments = vars(parser.parse_args())
    path = arguments.pop("json")
    facts = machine(arguments["device"])
    rows: list[Any] = []
    with contextlib.redirect_stdout(sys.stderr):  # initialize's messages
        for row in measure(**arguments):
            rows.append(row)
            if path:
                write(path, facts, rows)
    print_table(rows)

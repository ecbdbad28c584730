"""What torchamp's headers cost a compiler, beside torch's.

Times are user seconds of `c++ -fsyntax-only` on a file that includes the headers and nothing else,
each header set in turn.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import command_line
import torch
from markdown import table

import torchamp

TORCH, AMP = "torch/torch.h", "torchamp/amp.h"
HEADERS = {"torch.h": [TORCH], "torch.h and amp.h": [TORCH, AMP], "amp.h": [AMP]}


@dataclass
class Row:
    """User seconds: the median and the extremes."""

    headers: str
    seconds: float
    least: float
    most: float


def compiled(headers: list[str], folder: Path) -> float:
    source = folder / "headers.cpp"
    source.write_text("".join(f"#include <{header}>\n" for header in headers))
    of_torch = Path(torch.__file__).parent / "include"
    standard = 20 if int(torch.__version__.split(".")[1]) >= 14 else 17
    includes = (of_torch, of_torch / "torch/csrc/api/include")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(
        [os.environ.get("CXX", "c++"), f"-std=c++{standard}", "-fsyntax-only", str(source)]
        + [f"-I{Path(torchamp.__file__).parent / 'include'}"]
        + [option for include in includes for option in ("-isystem", str(include))],
        check=True,
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def measure(device: str, repeats: int) -> Iterator[Row]:
    times: dict[str, list[float]] = {name: [] for name in HEADERS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for name, headers in HEADERS.items():
                times[name].append(compiled(headers, Path(folder)))
    for name, each in times.items():
        yield Row(name, statistics.median(each), min(each), max(each))


def print_table(rows: list[Row]) -> None:
    cells = [[row.headers, f"{row.seconds:.1f}", f"{row.least:.1f}–{row.most:.1f}"] for row in rows]
    print(table(["headers", "user s", "extremes"], cells))


if __name__ == "__main__":
    command_line.run(__doc__, measure, print_table)

"""Runs the digits example in one language and reads its results."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

EXAMPLES = Path(__file__).resolve().parent
REPOSITORY = EXAMPLES.parent
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", REPOSITORY / "build"))

PYTHON_COMMAND = [sys.executable, str(EXAMPLES / "python" / "digits.py")]
CPP_COMMAND = [str(BUILD / "examples" / "cpp" / "digits" / "digits")]


@dataclass(frozen=True)
class Step:
    """A row of a run's CSV. ``loss_scale`` is the scale of this step's loss."""

    step: int
    loss: float
    loss_scale: float
    skipped: bool


@dataclass(frozen=True)
class Run:
    """The printed summary of one run, and its steps. ``peak_memory_mib`` on a CPU: of the
    process, mostly torch itself."""

    level: str
    language: str
    device: str
    backend: str
    test_accuracy: float
    ms_per_step: float
    peak_memory_mib: float
    loss_scale: float
    skipped_steps: int
    steps: list[Step]


def build_cpp_example() -> None:
    """Builds examples/cpp/digits in the repository's build folder; fast if it is up to date.

    Raises RuntimeError with the build output if it does not build.
    """
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(BUILD), "-DTORCHAMP_BUILD_EXAMPLES=ON"]
    build = ["cmake", "--build", str(BUILD), "--target", "digits", "--parallel"]
    for command in (configure, build):
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if finished.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{finished.stdout}")


def read_steps(path: Path) -> list[Step]:
    with path.open(newline="") as file:
        return [
            Step(
                int(row["step"]),
                float(row["loss"]),
                float(row["loss_scale"]),
                row["skipped"] == "1",
            )
            for row in csv.DictReader(file)
        ]


def parse_run(summary: str, steps: list[Step]) -> Run:
    """Parses the ``key value`` lines that a run prints."""
    text = dict(line.split(maxsplit=1) for line in summary.splitlines())
    types = get_type_hints(Run)
    return Run(**{name: types[name](value) for name, value in text.items()}, steps=steps)


def run(command: list[str], level: str, steps_csv: Path, *arguments: str) -> Run:
    """Trains at ``level``; the run's progress bar goes to this process's stderr.

    Raises subprocess.CalledProcessError if the run fails.
    """
    command = [*command, "--level", level, "--out", str(steps_csv), *arguments]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return parse_run(finished.stdout, read_steps(steps_csv))

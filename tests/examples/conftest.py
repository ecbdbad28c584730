"""The C++ examples as the build left them, and how to run one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
sys.path.insert(0, str(ROOT / "examples"))


class Finished(NamedTuple):
    """``summary``: the lines ``key value`` that an example ended with."""

    summary: dict[str, str]
    stdout: str
    stderr: str


@pytest.fixture
def run_cpp() -> Callable[..., Finished]:
    """Returns a function that runs an example of C++ by its name, on the CPU.

    The function raises CalledProcessError if the example ends with another status than 0.
    """

    def run(name: str, *arguments: object) -> Finished:
        program = BUILD / "examples" / "cpp" / name / name
        if not program.is_file():
            pytest.fail(f"expected {program} to be there: run `make test`")
        done = subprocess.run(
            [str(program), "--device", "cpu", *map(str, arguments)],
            check=True,
            capture_output=True,
            text=True,
        )
        pairs = (line.split(maxsplit=1) for line in done.stdout.splitlines())
        return Finished({p[0]: p[1] for p in pairs if len(p) == 2}, done.stdout, done.stderr)

    return run

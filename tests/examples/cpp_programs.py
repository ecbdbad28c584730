"""The C++ examples as the build left them, and how to run one."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest
from runs import BUILD


class Finished(NamedTuple):
    """``summary``: the lines ``key value`` of what an example printed."""

    summary: dict[str, str]
    stdout: str


def run_cpp(name: str, *arguments: object) -> Finished:
    """Runs an example of C++ by its name, on the CPU.

    Fails the test if it is not built. Raises CalledProcessError if it ends with another status
    than 0.
    """
    program = BUILD / "examples" / "cpp" / name / name
    if not program.is_file():
        pytest.fail(f"expected {program} to be there: run `make test`")
    command = [str(program), "--device", "cpu", *map(str, arguments)]
    stdout = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = (line.split(maxsplit=1) for line in stdout.splitlines())
    return Finished({pair[0]: pair[1] for pair in pairs if len(pair) == 2}, stdout)

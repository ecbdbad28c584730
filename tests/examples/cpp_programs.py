"""Runs the C++ examples."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from installed import example


class Finished(NamedTuple):
    """``summary``: the lines ``key value`` of what an example printed."""

    summary: dict[str, str]
    stdout: str


def run_cpp(name: str, *arguments: object) -> Finished:
    """Runs an example of C++ by its name, on the CPU.

    Raises CalledProcessError if it ends with another status than 0.
    """
    command = [str(example(name)), "--device", "cpu", *map(str, arguments)]
    stdout = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = (line.split(maxsplit=1) for line in stdout.splitlines())
    return Finished({pair[0]: pair[1] for pair in pairs if len(pair) == 2}, stdout)

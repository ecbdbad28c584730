"""Runs the C++ examples."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from installed import example


class Finished(NamedTuple):
    """``summary``: the printed lines ``key value`` of an example."""

    summary: dict[str, str]
    stdout: str


def run_cpp(name: str, *arguments: object, launcher: Sequence[object] = ()) -> Finished:
    """Runs a C++ example by name, on the CPU, by `launcher` if given.

    Raises CalledProcessError if its exit status is not 0, TimeoutExpired after ten minutes.
    """
    command = [*map(str, launcher), str(example(name)), "--device", "cpu", *map(str, arguments)]
    stdout = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout
    pairs = (line.split(maxsplit=1) for line in stdout.splitlines())
    return Finished({pair[0]: pair[1] for pair in pairs if len(pair) == 2}, stdout)

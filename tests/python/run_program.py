"""Runs a program as `python -m torchamp.apex` does, in a process of its own that need not import
torch: a server that has done so forks it."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torchamp", "torch._dynamo"])
_SECONDS = 120


def run_program(arguments: list[str], log: pathlib.Path) -> str:
    """What the program printed, also into the new file `log`. Asserts that it succeeded."""
    return run_ranks([arguments], [log])[0]


def run_ranks(programs: list[list[str]], logs: list[pathlib.Path]) -> list[str]:
    """The same for programs that run at the same time."""
    processes = [_SERVER.Process(target=_run, args=pair) for pair in zip(programs, logs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_SECONDS)
        if process.exitcode is None:
            process.kill()
    said = [log.read_text() for log in logs]
    for process, arguments, text in zip(processes, programs, said):
        assert process.exitcode == 0, f"{arguments} ended with {process.exitcode}:\n{text}"
    return said


def _run(arguments: list[str], log: pathlib.Path) -> None:
    from torchamp.compat.run import main

    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))

"""Runs a program like `python -m torchamp.apex`, in a process forked by a server that has already
imported torch."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torchamp", "torch._dynamo"])
_SECONDS = 120


def run_program(arguments: list[str], log: pathlib.Path) -> str:
    """Returns the program's output and writes it to the new file `log`. Asserts success."""
    return run_ranks([arguments], [log])[0]


def run_ranks(programs: list[list[str]], logs: list[pathlib.Path]) -> list[str]:
    """The same for several programs in parallel."""
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

"""`python -m apex.parallel.multiproc script.py …` runs a script once a GPU, or once.

Each run gets the arguments --world-size and --rank; runs but the first write to GPU_<rank>.log.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import torch

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Runs the script and its arguments for every rank; returns the first exit status that is not
    0."""
    world_size = _world_size(arguments)
    with contextlib.ExitStack() as stack:
        runs = []
        for rank in range(world_size):
            output = stack.enter_context(open(f"GPU_{rank}.log", "w")) if rank else None
            command = [sys.executable, *_with(arguments, world_size, rank)]
            runs.append(subprocess.Popen(command, stdout=output))
        statuses = [run.wait() for run in runs]
    return next(filter(None, statuses), 0)


def _world_size(arguments: list[str]) -> int:
    if "--world-size" in arguments:
        return int(arguments[arguments.index("--world-size") + 1])
    return max(1, torch.cuda.device_count())


def _with(arguments: list[str], world_size: int, rank: int) -> list[str]:
    result = list(arguments)
    for name, value in (("--world-size", world_size), ("--rank", rank)):
        if name in result:
            result[result.index(name) + 1] = str(value)
        else:
            result += [name, str(value)]
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

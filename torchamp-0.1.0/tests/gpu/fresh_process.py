"""Programs in new processes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys


def run(program: str, **environment: str) -> str:
    """Returns the output of a Python program, which may import this folder's modules. Asserts that
    it succeeds."""
    paths = [str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout

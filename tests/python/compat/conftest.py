"""Fixtures for the tests of apex's names, which they import as programs do."""

import os
import pathlib
import subprocess
import sys

import pytest

import torchamp

torchamp.install_as_apex()

#: For PYTHONPATH.
PACKAGE = str(pathlib.Path(torchamp.__file__).parents[1])


@pytest.fixture
def python(tmp_path):
    """Runs a fresh Python in a folder of its own; returns what it printed. Raises if its exit
    status is not the expected one."""

    def run(*arguments: str, expect: int = 0, **environment: str) -> str:
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": PACKAGE, **environment},
            capture_output=True,
            text=True,
        )
        assert result.returncode == expect, result.stderr
        return result.stdout + result.stderr

    return run

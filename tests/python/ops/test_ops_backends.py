"""The same tests with the ATen backend."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOMS = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["ops/test_ops_random.py", "telemetry/test_telemetry.py"])
def test_without_kernels(name):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOMS / name)],
        env={**os.environ, "TORCHAMP_KERNELS": "aten"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout

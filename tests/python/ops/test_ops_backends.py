"""The same tests with the ATen backend."""

import pathlib

import pytest

ROOMS = pathlib.Path(__file__).parents[1]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ops/test_fuzz_ops.py", "telemetry/test_telemetry.py"])
def test_without_kernels(python, name):
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOMS / name)]
    assert " passed" in python(*command, TORCHAMP_KERNELS="aten")

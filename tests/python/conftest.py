"""Fixtures for all Python tests: every available device, one seed, no autocast left on."""

import gc
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from tensors import DEVICES

import torchamp

torchamp.install_as_apex()  # the tests in compat/ import apex like programs

#: For PYTHONPATH.
PACKAGE = str(pathlib.Path(torchamp.__file__).parents[1])


def _marked(device: torch.device):
    return pytest.param(device, marks=[pytest.mark.card] * (device.type == "cuda"), id=str(device))


@pytest.fixture(params=map(_marked, DEVICES))
def device(request) -> torch.device:
    """Each available device in turn."""
    return request.param


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)
    was_on = torch.is_autocast_enabled("cpu")
    yield
    assert was_on or not torch.is_autocast_enabled("cpu"), "the test left O1's autocast on"


@pytest.fixture
def no_collector():
    """Cycles live on."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture
def one_thread():
    """Sums in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def python(tmp_path):
    """Runs a new Python process in its own folder and returns its output. Asserts its exit
    status."""

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


def pytest_terminal_summary(terminalreporter) -> None:
    if len(DEVICES) == 1:
        terminalreporter.write_line("NOT TESTED ON A GPU: none is here", yellow=True, bold=True)

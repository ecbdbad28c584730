"""Fixtures for all Python tests: every available device, one seed, no autocast left on."""

import gc
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from processes.forked import Server, Started, output_of
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
    """Cycles live on, but not those that the first optimizer of a process makes, in an import."""
    import torch._dynamo  # noqa: F401

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
def one_rank():
    """A process group of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _environment(variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PACKAGE, **variables}


@pytest.fixture(scope="session")
def server():
    """Forks Python processes that have torch."""
    with Server(PYTHONPATH=PACKAGE) as server:
        yield server


@pytest.fixture
def start_python(server, tmp_path):
    """Starts a Python program in its own folder, with torch imported already."""

    def start(*arguments: str, **environment: str) -> Started:
        return server.start(arguments, tmp_path, _environment(environment))

    return start


@pytest.fixture
def python(start_python):
    """Runs it and returns its output. Asserts its exit status."""

    def run(*arguments: str, expect: int = 0, **environment: str) -> str:
        return output_of(start_python(*arguments, **environment).wait(), expect)

    return run


@pytest.fixture
def new_python(tmp_path):
    """As `python`, in a new process, for what happens as Python starts or torch is imported."""

    def run(*arguments: str, expect: int = 0, **environment: str) -> str:
        command, variables = [sys.executable, *arguments], _environment(environment)
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        return output_of(done, expect)

    return run


def pytest_collection_finish() -> None:
    """All objects of now live on: tests that collect garbage need not look for it there."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter) -> None:
    if len(DEVICES) == 1:
        terminalreporter.write_line("NOT TESTED ON A GPU: none is here", yellow=True, bold=True)

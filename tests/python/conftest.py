"""Fixtures for all Python tests: every device that is present, one seed, no autocast left on."""

import pytest
import torch
from tensors import DEVICES


@pytest.fixture(params=DEVICES)
def device(request) -> torch.device:
    """Each device that is present, in turn."""
    return request.param


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(0)
    was_on = torch.is_autocast_enabled("cpu")
    yield
    assert was_on or not torch.is_autocast_enabled("cpu"), "the test left O1's autocast on"


def pytest_terminal_summary(terminalreporter) -> None:
    if len(DEVICES) == 1:
        terminalreporter.write_line("NOT TESTED ON A GPU: none is here", yellow=True, bold=True)

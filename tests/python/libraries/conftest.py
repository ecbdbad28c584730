"""Where make soak finds libraries that the environment does not have."""

import pathlib
import sys

import pytest


@pytest.fixture
def libraries(monkeypatch):
    """run_tests.sh installs them in build/libraries, where no other test finds them."""
    folder = pathlib.Path(__file__).parents[3] / "build" / "libraries"
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])

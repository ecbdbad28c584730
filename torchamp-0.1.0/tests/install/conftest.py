"""Installs torchamp in each supported way, for the projects that use it."""

import pathlib
import sys
from typing import Callable, Optional

import installed
import pytest
from installed import BUILD, CONSUMER, launcher, run


@pytest.fixture(scope="session")
def built_tree() -> pathlib.Path:
    """The CMake build tree of this checkout, from `make setup`."""
    if not (BUILD / "lib" / "libtorchamp.so").is_file():
        pytest.fail(f"expected {BUILD} to hold a built torchamp: run `make setup`")
    return BUILD


@pytest.fixture(scope="session")
def prefix(built_tree: pathlib.Path) -> pathlib.Path:
    """A prefix with torchamp, moved after `cmake --install`."""
    return installed.prefix()


@pytest.fixture(scope="session")
def wheel_site(built_tree: pathlib.Path) -> pathlib.Path:
    """A site-packages folder with only torchamp's wheel."""
    return installed.wheel_site()


@pytest.fixture
def build_consumer(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Returns a function that configures, builds and runs the consumer, and returns its output."""

    def build(*options: object, python: Optional[str] = sys.executable) -> str:
        tree = tmp_path / "build"
        chosen = [] if python is None else [f"-DPython3_EXECUTABLE={python}"]
        run("cmake", "-S", CONSUMER, "-B", tree, *launcher(), *chosen, *options)
        run("cmake", "--build", tree, "--parallel", "2")
        return run(tree / "consumer")

    return build

"""Installs torchamp in each way that its users can, for the projects that then use it."""

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Callable, Optional

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
CONSUMER = pathlib.Path(__file__).parent / "consumer"


def run(*command: object, **environment: object) -> str:
    """Runs a program to its end and returns its output; a failure shows all that it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **{k: str(v) for k, v in environment.items()}},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built_tree() -> pathlib.Path:
    """The CMake build tree of this checkout, as `make setup` leaves it."""
    if not (BUILD / "lib" / "libtorchamp.so").is_file():
        pytest.fail(f"expected {BUILD} to hold a built torchamp: run `make setup`")
    return BUILD


@pytest.fixture(scope="session")
def prefix(built_tree: pathlib.Path) -> pathlib.Path:
    """A prefix that `cmake --install` filled, and that was moved afterwards. It always lies in the
    same place, for ccache."""
    before, after = (built_tree / "install_tests" / name for name in ("before", "after"))
    shutil.rmtree(before.parent, ignore_errors=True)
    run("cmake", "--install", built_tree, "--prefix", before)
    before.rename(after)
    return after


@pytest.fixture(scope="session")
def wheel_site(built_tree: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A site-packages folder that holds torchamp's wheel alone, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    run(
        *pip,
        "wheel",
        ROOT,
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        TORCHAMP_BUILD_DIR=built_tree,
    )
    site = folder / "site"
    run(*pip, "install", "--no-deps", "--target", site, *folder.glob("*.whl"))
    return site


@pytest.fixture
def build_consumer(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Returns a function that configures, builds and runs the consumer, and returns its output."""

    def build(*options: object, python: Optional[str] = sys.executable) -> str:
        tree = tmp_path / "build"
        chosen = [] if python is None else [f"-DPython3_EXECUTABLE={python}"]
        configure_consumer(tree, *chosen, *options)
        run("cmake", "--build", tree, "--parallel", "2")
        return run(tree / "consumer")

    return build


def configure_consumer(tree: pathlib.Path, *options: object) -> str:
    """Configures the consumer in a build tree and returns what CMake printed."""
    return run(
        "cmake",
        "-S",
        CONSUMER,
        "-B",
        tree,
        *launcher(),
        *options,
    )


def launcher() -> list[str]:
    """CMake's option for ccache where it is installed."""
    ccache = shutil.which("ccache")
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []

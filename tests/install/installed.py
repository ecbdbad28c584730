"""Installs torchamp from its build tree and builds the C++ examples as user projects, once per test
run, in the first process that asks."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
FOLDER = BUILD / "install_tests"
CONSUMER = ROOT / "tests" / "install" / "consumer"
EXAMPLES = {path.parent.name: path.parent for path in ROOT.glob("examples/cpp/*/CMakeLists.txt")}

#: Identifies the processes of one test run.
TEST_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


def run(*command: object, **environment: object) -> str:
    """Runs a program and returns its output; a failure shows all of it."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **{k: str(v) for k, v in environment.items()}},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def launcher() -> list[str]:
    """CMake's option for ccache, if installed."""
    ccache = shutil.which("ccache")
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []


def once(name: str, make: Callable[[], None]) -> None:
    """Calls `make` in the first process of this test run that gets here; others wait for it."""
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / f"{name}.made_in", "a+") as made_in:
        fcntl.flock(made_in, fcntl.LOCK_EX)
        made_in.seek(0)
        if made_in.read() != TEST_RUN:
            make()
            made_in.truncate(0)
            made_in.write(TEST_RUN)


def prefix() -> pathlib.Path:
    """A prefix filled by `cmake --install` and moved afterwards. Its path is always the same, for
    examples built in an earlier run, and for ccache."""
    before, after = FOLDER / "before", FOLDER / "after"

    def install() -> None:
        shutil.rmtree(before, ignore_errors=True)
        shutil.rmtree(after, ignore_errors=True)
        run("cmake", "--install", BUILD, "--prefix", before)
        before.rename(after)

    once("prefix", install)
    return after


def wheel_site() -> pathlib.Path:
    """A site-packages folder with only torchamp's wheel, built from this checkout."""
    folder = FOLDER / "wheel"
    pip = [sys.executable, "-m", "pip", "--quiet"]

    def build() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--no-deps", "--no-build-isolation", "--wheel-dir", folder]
        run(*pip, "wheel", ROOT, *options, TORCHAMP_BUILD_DIR=BUILD)
        run(*pip, "install", "--no-deps", "--target", folder / "site", *folder.glob("*.whl"))

    prefix()  # pip builds in the tree that the prefix is installed from, so not at the same time
    once("wheel", build)
    return folder / "site"


def example(name: str) -> pathlib.Path:
    """The program of an example, built like a user's copy. Unoptimised, which compiles fast."""
    tree = FOLDER / "examples" / name

    def build() -> None:
        python = f"-DPython3_EXECUTABLE={sys.executable}"
        found = f"-DCMAKE_PREFIX_PATH={prefix()}"
        run("cmake", "-S", EXAMPLES[name], "-B", tree, *launcher(), python, found)
        run("cmake", "--build", tree)

    once(name, build)
    return tree / name

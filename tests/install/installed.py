"""Installs torchamp from its build tree and builds the C++ examples as user projects, once per test
run, in the first process that asks."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from typing import Callable, Optional, TextIO

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TORCHAMP_BUILD_DIR", ROOT / "build"))
FOLDER = BUILD / "install_tests"
CONSUMER = ROOT / "tests" / "install" / "consumer"
EXAMPLES = {path.parent.name: path.parent for path in ROOT.glob("examples/cpp/**/CMakeLists.txt")}

#: Identifies the processes of one test run.
TEST_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))


def run(*command: object, folder: Optional[pathlib.Path] = None, **environment: object) -> str:
    """Runs a program, in a folder, and returns its output; a failure shows all of it."""
    done = _ended(command, folder, environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def failure(*command: object, folder: Optional[pathlib.Path] = None, **environment: object) -> str:
    """Runs a program that fails, and returns what it writes to stderr."""
    done = _ended(command, folder, environment)
    assert done.returncode != 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stderr


def _ended(
    command: tuple[object, ...], folder: Optional[pathlib.Path], environment: dict[str, object]
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **{k: str(v) for k, v in environment.items()}},
    )


def launcher() -> list[str]:
    """CMake's option for ccache, if installed."""
    ccache = shutil.which("ccache")
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []


@contextlib.contextmanager
def locked(name: str) -> Iterator[TextIO]:
    """Gives a file that no other process has locked meanwhile."""
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / f"{name}.made_in", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def once(name: str, make: Callable[[], None]) -> None:
    """Calls `make` in the first process of this test run that gets here; others wait for it."""
    with locked(name) as made_in:
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


def wheel() -> pathlib.Path:
    """The wheel that `wheel_site` holds."""
    wheel_site()
    (found,) = (FOLDER / "wheel").glob("*.whl")
    return found


def archive() -> pathlib.Path:
    """The source distribution of this checkout."""
    folder = FOLDER / "archive"

    def build() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        hook = "from torchamp_build import build_sdist; import sys; build_sdist(sys.argv[1])"
        path = ROOT / "build_tools"
        run(sys.executable, "-c", hook, folder, folder=ROOT, PYTHONPATH=path)

    wheel_site()  # whose build writes the same metadata beside the sources
    once("archive", build)
    (found,) = folder.glob("*.tar.gz")
    return found


def packages_without_torchamp() -> pathlib.Path:
    """A folder that holds links to the packages of this Python, torch among them."""
    folder = FOLDER / "packages"

    def link() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        sites = [path for path in map(pathlib.Path, sys.path) if path.name.endswith("-packages")]
        for entry in (entry for site in sites for entry in site.iterdir()):
            here = folder / entry.name
            if "torchamp" not in entry.name and entry.suffix != ".pth" and not here.is_symlink():
                here.symlink_to(entry)

    once("packages", link)
    return folder


class Environment:
    """A virtual environment with this Python's packages, but without torchamp."""

    def __init__(self, folder: pathlib.Path) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "inherited.pth").write_text(f"{packages_without_torchamp()}\n")
        self.folder = folder

    def pip_install(self, *what: object, **environment: object) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install"]
        # pip would take the wheel that it made of an earlier archive of this name.
        run(*pip, "--quiet", "--no-deps", "--no-cache-dir", *what, **environment)

    def call(
        self, program: str, *arguments: str, **settings: object
    ) -> subprocess.CompletedProcess:
        """Runs a program of the environment."""
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": "", **{k: str(v) for k, v in settings.items()}},
        )


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

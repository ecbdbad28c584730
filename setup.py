"""Drives CMake, which is the only build definition, and packs what `cmake --install` gives.

Environment: CMAKE_ARGS is handed to CMake (`CMAKE_ARGS=-DTORCHAMP_USE_CUDA=OFF pip install .`),
MAX_JOBS bounds the compilers that run at once, TORCHAMP_BUILD_DIR keeps CMake's build tree,
TORCHAMP_LOCAL_VERSION=torch2.13 makes the version 0.1.0+torch2.13.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import setuptools
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "cmake"))

import probe_torch  # noqa: E402

KIB_PER_COMPILER = 3 << 19  # 1.5 GiB: what torch's larger headers take
OLDEST_SETUPTOOLS = 77  # reads `license = "BSD-3-Clause"`
OLDEST_TORCH = "2.6"
LOCAL_VERSION = os.environ.get("TORCHAMP_LOCAL_VERSION", "")


def torch_minor() -> str:
    """Returns "2.13" for the torch that this build will find, or "" without one."""
    torch = probe_torch.find_torch()
    return ".".join(probe_torch.read_version(torch).split(".")[:2]) if torch else ""


def public_version() -> str:
    """Returns CMake's version of the project: 0.1.0."""
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(torchamp VERSION ([0-9.]+)", text).group(1)


def dependencies() -> list[str]:
    """Returns the one torch minor version that the compiled code works with. The sources, and a
    build that will fail for want of torch, take every supported one."""
    minor = "" if "sdist" in sys.argv else torch_minor()
    return [f"torch=={minor}.*" if minor else f"torch>={OLDEST_TORCH}"]


def readme() -> str:
    """Returns README.md with absolute links, which a package index needs."""
    metadata = (ROOT / "pyproject.toml").read_text()
    source = re.search(r'^Source = "(.+)"$', metadata, re.MULTILINE).group(1)
    to = f"]({source}/blob/main/"
    return re.sub(r"\]\((?!https?:|#)", to, (ROOT / "README.md").read_text())


def jobs() -> int:
    """Returns how many compilers may run at once: one a core, if the memory allows it."""
    if "MAX_JOBS" in os.environ:
        return int(os.environ["MAX_JOBS"])
    available = re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text())
    affordable = int(available.group(1)) // KIB_PER_COMPILER
    return max(1, min(len(os.sched_getaffinity(0)), affordable))


def tool(name: str) -> str:
    """Returns the path of a program on PATH or beside this Python, or ""."""
    return shutil.which(name) or shutil.which(name, path=str(pathlib.Path(sys.prefix, "bin"))) or ""


class CleanBuild(build):
    """Starts from an empty tree, so that a deleted Python file is not packed again."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Builds with CMake and installs the C++ package and the module into the Python package: that
    of the wheel, or for an editable installation that of the sources."""

    def build_extension(self, ext: Extension) -> None:
        if not torch_minor() and not {"CMAKE_ARGS", "CMAKE_PREFIX_PATH"} & os.environ.keys():
            raise SystemExit(
                f"torchamp: expected torch in {sys.prefix}, got none: install torch first, then "
                "torchamp, in two commands; uv needs --no-build-isolation-package torchamp for the "
                "second"
            )
        cmake = tool("cmake")
        if not cmake:
            raise SystemExit("torchamp: cmake was not found: pip install cmake")
        tree = os.environ.get("TORCHAMP_BUILD_DIR") or self._own_tree()
        package = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve().parent
        if self.editable_mode:
            package = ROOT / "python" / "torchamp"
        self._run(cmake, "-S", str(ROOT), "-B", tree, *self._options())
        self._run(cmake, "--build", tree, "--parallel", str(jobs()))
        self._run(cmake, "--install", tree, "--prefix", str(package))
        self._run(cmake, "--install", tree, "--prefix", str(package), "--component", "python")

    def copy_extensions_to_source(self) -> None:
        """Does nothing: CMake has installed the module there."""

    def _own_tree(self) -> str:
        """Returns a build tree that keeps its objects, but none of the paths found last time: pip's
        isolated environments, and the tools in them, are gone after each build."""
        tree = pathlib.Path(self.build_temp)
        if self.editable_mode:  # setuptools deletes build_temp
            tree = ROOT / "build" / "python-package" / "editable"
        tree.joinpath("CMakeCache.txt").unlink(missing_ok=True)
        return str(tree)

    def _options(self) -> list[str]:
        options = [
            f"-DPython3_EXECUTABLE={sys.executable}",
            "-DTORCHAMP_BUILD_PYTHON=ON",
            "-DTORCHAMP_BUILD_TESTS=OFF",
            "-DCMAKE_INSTALL_MESSAGE=NEVER",
            f"-DTORCHAMP_LOCAL_VERSION={LOCAL_VERSION}",
        ]
        if tool("ninja") and "CMAKE_GENERATOR" not in os.environ:
            options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
        return options + shlex.split(os.environ.get("CMAKE_ARGS", ""))

    def _run(self, *command: str) -> None:
        if subprocess.run(command).returncode != 0:
            raise SystemExit(f"torchamp: failed, for the reason above: {shlex.join(command)}")


if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
    raise SystemExit(
        f"torchamp: expected setuptools {OLDEST_SETUPTOOLS} or newer, "
        f"got {setuptools.__version__}: pip install --upgrade setuptools"
    )

setup(
    version="+".join(filter(None, (public_version(), LOCAL_VERSION))),
    long_description=readme(),
    long_description_content_type="text/markdown",
    install_requires=dependencies(),
    ext_modules=[Extension("torchamp._C", sources=[])],
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
    options={"build": {"build_base": "build/python-package"}},
)

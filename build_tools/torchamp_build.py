"""The build backend: setuptools, from the target environment if it is there.

pip's build isolation hides the environment that torchamp is built for. torchamp needs that
environment's torch anyway, so the backend also looks there for setuptools and CMake, and lets pip
download only what is missing. So builds work offline, with and without isolation.
"""

import atexit
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import Any, Optional

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "cmake"))

import probe_torch  # noqa: E402

Settings = Optional[dict[str, Any]]

_PLATFORMS = {("Linux", "x86_64"), ("Linux", "aarch64")}
_ANY_PLATFORM = re.compile(r"-D *TORCHAMP_ANY_PLATFORM(:BOOL)?=(ON|TRUE|YES|Y|1)\b", re.IGNORECASE)

sys.path.extend(folder for folder in probe_torch.site_folders() if folder not in sys.path)


def _missing_tools() -> list[str]:
    return [] if _setuptools_major() >= 77 else ["setuptools>=77.0.3"]


def _setuptools_major() -> int:
    """Of the setuptools that will be imported; 0 if there is none."""
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def _missing_build_tools() -> list[str]:
    cmake = shutil.which("cmake") or pathlib.Path(sys.prefix, "bin", "cmake").is_file()
    return _missing_tools() + ([] if cmake else ["cmake>=3.18"])


def _setuptools() -> ModuleType:
    """Returns setuptools' backend. uv, which pyproject.toml tells to build without isolation,
    installs nothing for that: here it puts what is missing into a folder of this build."""
    missing = _missing_build_tools()
    if missing and "UV" in os.environ:
        folder = tempfile.mkdtemp(prefix="torchamp-build-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        install = [os.environ["UV"], "pip", "install", "--quiet", "--target", folder, *missing]
        subprocess.run(install, check=True)
        sys.path.insert(0, folder)
        for name, entry in {"PYTHONPATH": folder, "PATH": f"{folder}/bin"}.items():
            os.environ[name] = os.pathsep.join(filter(None, [entry, os.environ.get(name)]))
    from setuptools import build_meta

    return build_meta


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns what pip must install first: nothing if setuptools and CMake are installed. Ends a
    build for a platform on which torchamp is not tested, unless CMAKE_ARGS allows any."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) not in _PLATFORMS and not _ANY_PLATFORM.search(
        os.environ.get("CMAKE_ARGS", "")
    ):
        raise SystemExit(
            f"torchamp: expected Linux on x86-64 or ARM (aarch64), got {system} on {machine}; "
            "-DTORCHAMP_ANY_PLATFORM=ON in CMAKE_ARGS builds for it, untested"
        )
    return _missing_build_tools()


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Returns what pip must install to build a source distribution."""
    return _missing_tools()


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings = None) -> str:
    """Writes the wheel's metadata without compiling anything."""
    return _setuptools().prepare_metadata_for_build_wheel(directory, config_settings)


def build_wheel(
    directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Builds the wheel into a directory and returns its file name."""
    return _setuptools().build_wheel(directory, config_settings, metadata_directory)


def build_editable(
    directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Builds an editable wheel: the compiled files go to python/torchamp."""
    return _setuptools().build_editable(directory, config_settings, metadata_directory)


def build_sdist(directory: str, config_settings: Settings = None) -> str:
    """Packs the sources into a directory and returns the archive's file name."""
    return _setuptools().build_sdist(directory, config_settings)

"""The build backend: setuptools, from the target environment if it is there.

pip's build isolation hides the environment that torchamp is built for. torchamp needs that
environment's torch anyway, so the backend also looks there for setuptools and CMake, and lets pip
download only what is missing. So builds work offline, with and without isolation.
"""

import importlib.metadata
import pathlib
import shutil
import sys
from typing import Any, Optional

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "cmake"))

import probe_torch  # noqa: E402

Settings = Optional[dict[str, Any]]

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


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns what pip must install first: nothing if setuptools and CMake are installed."""
    return _missing_build_tools()


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Returns what pip must install to build a source distribution."""
    return _missing_tools()


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings = None) -> str:
    """Writes the wheel's metadata without compiling anything."""
    from setuptools import build_meta

    return build_meta.prepare_metadata_for_build_wheel(directory, config_settings)


def build_wheel(
    directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Builds the wheel into a directory and returns its file name."""
    from setuptools import build_meta

    return build_meta.build_wheel(directory, config_settings, metadata_directory)


def build_editable(
    directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """Builds an editable wheel: the compiled files go to python/torchamp."""
    from setuptools import build_meta

    return build_meta.build_editable(directory, config_settings, metadata_directory)


def build_sdist(directory: str, config_settings: Settings = None) -> str:
    """Packs the sources into a directory and returns the archive's file name."""
    from setuptools import build_meta

    return build_meta.build_sdist(directory, config_settings)

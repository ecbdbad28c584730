"""Loads torchamp's compiled module, or says why it cannot be loaded."""

import pathlib

import torch

from torchamp._built_for import TORCH_VERSION


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_torch(built_for: str, found: str) -> None:
    """Raises ImportError unless both torch versions, as "2.13.0+cpu", agree in their first two
    numbers: the compiled code of one minor version does not work with another's."""
    if _minor(built_for) == _minor(found):
        return
    raise ImportError(
        f"torchamp was built for torch {_minor(built_for)}, but torch {found} is installed. "
        f"Build torchamp again, in the folder of its sources: pip install --force-reinstall "
        f"--no-deps . (or go back: pip install 'torch=={_minor(built_for)}.*')"
    )


check_torch(TORCH_VERSION, torch.__version__)

from torchamp import _C  # noqa: E402  only now: with another torch it would not load, or crash

#: What CMAKE_PREFIX_PATH needs for find_package(torchamp).
cmake_prefix_path = str(pathlib.Path(__file__).parent / "share" / "cmake")


def build_info() -> dict:
    """Returns how torchamp was built: versions, compiler, C++ standard, CUDA architectures."""
    return _C.build_info()


__version__: str = build_info()["version"]

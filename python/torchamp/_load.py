"""Loads torchamp's compiled module, or explains why it cannot be loaded."""

import pathlib
from typing import Any

import torch

from torchamp._built_for import TORCH_VERSION

__all__ = ["_C", "__version__", "build_info", "check_torch", "cmake_prefix_path"]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_torch(built_for: str, found: str) -> None:
    """Raises ImportError unless both torch versions, as "2.13.0+cpu", agree in their first two
    numbers: the compiled code of one minor version does not work with another's."""
    if _minor(built_for) == _minor(found):
        return
    raise ImportError(
        f"torchamp was built for torch {_minor(built_for)}, but torch {found} is installed. "
        f"Build torchamp again: pip install --force-reinstall --no-deps --no-cache-dir torchamp, "
        f"or with . for torchamp in the folder of its sources "
        f"(or go back: pip install 'torch=={_minor(built_for)}.*')"
    )


check_torch(TORCH_VERSION, torch.__version__)

from torchamp import _C  # noqa: E402  only now: with another torch it would not load, or crash

#: The value of CMAKE_PREFIX_PATH for find_package(torchamp).
cmake_prefix_path: str = str(pathlib.Path(__file__).parent / "share" / "cmake")


def build_info() -> dict[str, Any]:
    """Returns how torchamp was built and what it uses here.

    The keys: `version` of torchamp; `torch_version` it was built for; `compiler`; `cxx_standard`,
    17 or 20; `fatbin`, the CUDA architectures that nvcc compiled; `nvcc`, its version or why it
    was absent; `kernel_cache`, the folder in which kernels compiled at run time are kept, empty
    where there is none; and `kernels`, for each device that torch sees the backend of its ops
    ("avx2", "neon", "portable", "fatbin", "nvrtc" or "aten"), which is chosen if need be.
    """
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return {**_C.build_info(), "kernels": {name: _C.backend(name)[0] for name in devices}}


#: The version of torchamp.
__version__: str = _C.build_info()["version"]

"""Loads torchamp's compiled module."""

import torch  # noqa: F401  libtorchamp.so needs torch's libraries to be loaded first

from torchamp import _C


def build_info() -> dict:
    """Returns how torchamp was built: versions, compiler, C++ standard, CUDA architectures."""
    return _C.build_info()

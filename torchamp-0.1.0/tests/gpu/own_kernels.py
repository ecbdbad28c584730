"""Skips tests that TORCHAMP_KERNELS excludes."""

import os

import pytest

needs_own_kernels = pytest.mark.skipif(
    os.environ.get("TORCHAMP_KERNELS") == "aten", reason="TORCHAMP_KERNELS=aten has ATen's kernels"
)
chooses_its_kernels = pytest.mark.skipif(
    "TORCHAMP_KERNELS" in os.environ, reason="TORCHAMP_KERNELS is set, and the test sets it itself"
)

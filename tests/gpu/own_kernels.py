"""What only torchamp's own kernels do, not ATen's."""

import os

import pytest

needs_own_kernels = pytest.mark.skipif(
    os.environ.get("TORCHAMP_KERNELS") == "aten", reason="TORCHAMP_KERNELS=aten has ATen's kernels"
)

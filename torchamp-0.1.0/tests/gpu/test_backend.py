"""TORCHAMP_KERNELS selects the backend."""

import os

import pytest
import torch

import torchamp

BACKENDS = {"aot": ["fatbin"], "nvrtc": ["nvrtc"], "aten": ["aten"], "auto": ["fatbin", "nvrtc"]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_backend_is_the_demanded_one():
    demanded = os.environ.get("TORCHAMP_KERNELS", "auto")
    assert torchamp.build_info()["kernels"]["cuda:0"] in BACKENDS[demanded]

"""What `import torchamp` checks, and build_info."""

import pytest
import torch

import torchamp
from torchamp._load import check_torch


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cu130", "2.13.1+cpu", "2.13.0a0+git1234567"])
def test_any_build_of_the_same_minor_version_is_accepted(found: str) -> None:
    check_torch("2.13.0+cpu", found)


@pytest.mark.parametrize("found", ["2.12.1", "2.14.0+cpu", "3.13.0", "2.1.3"])
def test_another_minor_version_is_refused_with_the_remedy(found: str) -> None:
    with pytest.raises(ImportError) as raised:
        check_torch("2.13.0+cpu", found)
    message = str(raised.value)
    assert message.startswith(
        f"torchamp was built for torch 2.13, but torch {found} is installed. "
    )
    assert "pip install --force-reinstall --no-deps --no-cache-dir torchamp" in message
    assert "pip install 'torch==2.13.*'" in message


def test_build_info_has_what_bug_reports_need() -> None:
    info = torchamp.build_info()
    assert info["version"] == torchamp.__version__
    assert info["torch_version"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert info["cxx_standard"] in (17, 20)
    assert bool(info["fatbin"]) != info["nvcc"].startswith("absent: ")


def test_build_info_names_the_kernel_cache(python) -> None:
    code = "import torchamp; print(torchamp.build_info()['kernel_cache'])"
    for variable, folder in (("/somewhere/else", "/somewhere/else"), ("off", "")):
        assert python("-c", code, TORCHAMP_CACHE=variable) == f"{folder}\n"


@pytest.mark.card
def test_build_info_names_the_kernels_of_every_device() -> None:
    kernels = torchamp.build_info()["kernels"]
    cards = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    assert list(kernels) == ["cpu", *cards]
    assert kernels["cpu"] in ("avx2", "neon", "portable")
    assert {kernels[card] for card in cards} <= {"fatbin", "nvrtc", "aten"}


BACKEND_OF_THE_CPU = "from torchamp._load import _C; print(*_C.backend('cpu'), sep=': ')"


def test_the_variable_takes_the_kernels_away(python) -> None:
    printed = python("-c", BACKEND_OF_THE_CPU, TORCHAMP_KERNELS="aten")
    assert printed == "aten: TORCHAMP_KERNELS is aten\n"


def test_an_unknown_value_of_the_variable_is_refused(python) -> None:
    printed = python("-c", BACKEND_OF_THE_CPU, TORCHAMP_KERNELS="cutlass", expect=1)
    message = "TORCHAMP_KERNELS: expected auto, aot, nvrtc or aten, got cutlass"
    assert printed.splitlines()[-1] == f"RuntimeError: {message}"

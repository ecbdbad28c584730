"""A card that is newer than NVRTC: the driver compiles the kernels from PTX."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import fresh_process
import pytest
import torch
from on_card import needs_card
from own_kernels import chooses_its_kernels

from torchamp._load import _C

pytestmark = [
    needs_card,
    chooses_its_kernels,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() <= (7, 5),
        reason="needs a card that is newer than Turing",
    ),
]

#: NVRTC that supports no architecture after Turing.
OLD_NVRTC = """
int nvrtcGetNumSupportedArchs(int* count) { *count = 1; return 0; }
int nvrtcGetSupportedArchs(int* architectures) { *architectures = 75; return 0; }
"""

STEPS = """
import torch
from on_card import CARD, CPU, assert_same_bits
from step_case import ALGORITHMS, StepCase, small_sizes
from torchamp import ops

def stepped(name, device):
    case = StepCase(ALGORITHMS[name], small_sizes(20), device)
    for _ in range(3):
        case.step()
    return case.written()

for name in ("adam", "momentum", "novo_grad"):
    assert_same_bits(stepped(name, CARD), stepped(name, CPU))
tensors, found_inf = [torch.full((16384,), 0.5, device=CARD)], torch.zeros((), device=CARD)
assert ops.check_l2norm(tensors, found_inf).item() == 64 and found_inf == 0
tensors[0][-1] = torch.nan
ops.check(tensors, found_inf)
assert found_inf == 1
"""


def path_of_nvrtc() -> pathlib.Path:
    """The path of the NVRTC that torchamp uses and reports."""
    _C.examine()
    (path,) = set(re.findall(r"/\S+/libnvrtc\.so\S*", pathlib.Path("/proc/self/maps").read_text()))
    return pathlib.Path(path)


def make_old_nvrtc(folder: pathlib.Path) -> pathlib.Path:
    source, library = folder / "old_nvrtc.c", folder / "libnvrtc_old.so"
    source.write_text(OLD_NVRTC)
    nvrtc = path_of_nvrtc()
    link = ["-Wl,--no-as-needed", nvrtc, f"-Wl,-rpath,{nvrtc.parent}"]
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library, *link], check=True)
    return library


def test_steps_equal_the_cpus(tmp_path):
    images = tmp_path / "kernels"
    fresh_process.run(
        STEPS,
        TORCHAMP_KERNELS="nvrtc",
        TORCHAMP_NVRTC=str(make_old_nvrtc(tmp_path)),
        TORCHAMP_CACHE=str(images),
    )
    assert all(b".target sm_75" in image.read_bytes() for image in images.iterdir())

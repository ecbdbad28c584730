"""A process's first launch: in a thread that has not used the card, and into a graph."""

import os
import pathlib
import subprocess
import sys

import pytest
from on_card import needs_card
from own_kernels import chooses_its_kernels

pytestmark = [needs_card, chooses_its_kernels]

IN_A_THREAD = """
inputs, outputs = torch.full((1000,), 3.0, device="cuda"), torch.zeros(1000, device="cuda")
found_inf = torch.zeros((), device="cuda")
torch.cuda.synchronize()
thread = threading.Thread(target=ops.scale, args=([inputs], [outputs], 0.5, found_inf))
thread.start()
thread.join()
"""

IN_A_CAPTURE = """
inputs, outputs = torch.full((1000,), 3.0, device="cuda"), torch.zeros(1000, device="cuda")
found_inf = torch.zeros((), device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    ops.scale([inputs], [outputs], 0.5, found_inf)
graph.replay()
"""

PROGRAM = """
import threading
import torch
from torchamp import ops
{launch}
torch.cuda.synchronize()
assert outputs.tolist() == [1.5] * 1000
"""


@pytest.mark.parametrize("launch", [IN_A_THREAD, IN_A_CAPTURE], ids=["thread", "capture"])
@pytest.mark.parametrize("kept", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("kernels", ["auto", "nvrtc"])
def test_it_works(tmp_path: pathlib.Path, kernels: str, kept: bool, launch: str) -> None:
    environment = {**os.environ, "TORCHAMP_KERNELS": kernels, "TORCHAMP_CACHE": str(tmp_path / "k")}
    for _ in range(1 + kept):
        command = [sys.executable, "-c", PROGRAM.format(launch=launch)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr

"""A rank that is killed, and training that torchrun starts again from the last checkpoint."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed")

LAUNCHER = "-m torch.distributed.run --nproc-per-node=2 --max-restarts=1 --rdzv-backend=c10d"
ADDRESS = "--rdzv-endpoint=127.0.0.1:0 --local-addr=127.0.0.1"
PROGRAM = "-m processes.restarted_training"


def outcome(new_python, folder: Path, *killed_in: str) -> list[tuple[int, list[torch.Tensor]]]:
    """The step that each rank's last start began with, and its masters."""
    folder.mkdir()
    command = f"{LAUNCHER} {ADDRESS} {PROGRAM}".split()
    new_python(*command, str(folder), *killed_in, PYTHONPATH=os.pathsep.join(sys.path))
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.soak
def test_a_killed_rank_resumes_bit_for_bit(new_python, tmp_path):
    (begun, expected), (_, other) = outcome(new_python, tmp_path / "never")
    assert begun == 0 and all(map(torch.equal, expected, other))
    for begun, masters in outcome(new_python, tmp_path / "killed", "3"):
        assert begun in (3, 4), "the checkpoints before and after the step of the kill"
        assert all(map(torch.equal, masters, expected))

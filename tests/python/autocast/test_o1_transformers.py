"""O1 and O4 beside torch's autocast on CUDA, in the forwards of the benchmarks' transformers."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from autocast.op_log import OpLog
from test_o1_ops import LEVELS, skipped_without_a_driver
from torch._subclasses.fake_tensor import FakeTensorMode

from torchamp._load import _C

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

from networks import FULL, Batch, Task, loss_of  # noqa: E402

CUDA = torch.device("cuda", 0)


def dtypes_of(log: OpLog) -> list[tuple]:
    """The dtypes of all results but those of casts."""
    cast = torch.ops.aten._to_copy.default
    return [(op, tensor.dtype) for op, given in log.results for tensor in given if op is not cast]


def bytes_of(log: OpLog) -> int:
    """The bytes that all ops have allocated."""
    return sum(tensor.nbytes for op, given in log.results for tensor in given if not op.is_view)


@contextlib.contextmanager
def torchs_autocast(dtype: torch.dtype):
    """On CUDA, which torch.autocast leaves off where there is none."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def fake(task: Task) -> tuple[torch.nn.Module, Batch]:
    """Without gradients: autograd asks the driver."""

    def fake_of(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)

    with torch.device("meta"):
        network, batch = task.make(), task.batch()
    for module in network.modules():
        for name, param in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(fake_of(param), requires_grad=False))
    return network, Batch(tuple(map(fake_of, batch.inputs)), tuple(map(fake_of, batch.targets)))


def logged(name: str, casts) -> OpLog:
    with FakeTensorMode(), skipped_without_a_driver():
        network, batch = fake(FULL[name])
        with casts, OpLog() as log:
            loss_of(network, batch)
    return log


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name",
    [
        "gpt2_124m_8k",
        pytest.param("gpt2_350m_8k", marks=pytest.mark.soak),
        pytest.param("bert_large", marks=pytest.mark.soak),
    ],
)
def test_only_the_loss_is_wider_than_under_torchs_autocast(name, level):
    """torch's autocast rounds the logarithms of probabilities to 16 bits."""
    dtype, loss_op = LEVELS[level], torch.ops.aten._log_softmax.default
    theirs = logged(name, torchs_autocast(dtype))
    ours = logged(name, contextlib.closing(_C.OpenAutocast(["cuda"], dtype)))
    assert (loss_op, torch.float32) in dtypes_of(ours)
    others = [[each for each in dtypes_of(log) if each[0] is not loss_op] for log in (ours, theirs)]
    assert others[0] == others[1]
    copies_the_scores = level == "O4"  # CUDA's log_softmax widens float16 alone by itself
    assert bytes_of(ours) <= bytes_of(theirs) * (1.05 if copies_the_scores else 1)

"""O1 and O4 beside torch's autocast on CUDA, in the forwards of the benchmarks' transformers."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from test_o1_ops import LEVELS, skipped_without_a_driver
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchamp._load import _C

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "python"))

from networks import FULL, Batch, Task, loss_of  # noqa: E402

CUDA = torch.device("cuda", 0)


class Watch(TorchDispatchMode):
    """The ops that give floating tensors, with their dtypes, but for casts; and the bytes of all
    that they allocate."""

    def __init__(self):
        super().__init__()
        self.ops, self.bytes = [], 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if op is not torch.ops.aten._to_copy.default:
                self.ops.append((op, tensor.dtype))
            if not op.is_view:
                self.bytes += tensor.nbytes
        return result


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


def watched(name: str, casts) -> Watch:
    with FakeTensorMode(), skipped_without_a_driver():
        network, batch = fake(FULL[name])
        with casts, Watch() as watch:
            loss_of(network, batch)
    return watch


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["gpt2_124m_8k", "gpt2_350m_8k", "bert_large"])
def test_only_the_loss_is_wider_than_under_torchs_autocast(name, level):
    """torch's autocast rounds the logarithms of probabilities to 16 bits."""
    dtype, loss_op = LEVELS[level], torch.ops.aten._log_softmax.default
    theirs = watched(name, torchs_autocast(dtype))
    ours = watched(name, contextlib.closing(_C.OpenAutocast(["cuda"], dtype)))
    assert (loss_op, torch.float32) in ours.ops
    assert [op for op in ours.ops if op[0] is not loss_op] == [
        op for op in theirs.ops if op[0] is not loss_op
    ]
    copies_the_scores = level == "O4"  # CUDA's log_softmax widens float16 alone by itself
    assert ours.bytes <= theirs.bytes * (1.05 if copies_the_scores else 1)

"""The bare loop that steps are timed beside computes the same step."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "benchmarks" / "python"))

from bare_step import LR, WEIGHT_DECAY, bare_step, is_available  # noqa: E402
from step_variants import Grads  # noqa: E402

from torchamp.optimizers import FusedAdamW  # noqa: E402

pytestmark = pytest.mark.skipif(not is_available("cpu"), reason="no AVX2 or no compiler")
SHAPES = [(3,), (64,), (37, 5), (70_001,)]  #: Two threads part in the last.


def test_steps_as_FusedAdamW_does():
    grads = Grads(SHAPES, "cpu")
    variant = bare_step(grads, scale=2.0)
    tensors = list(variant.tensors())
    masters, averages, squares, models = (
        tensors[i : i + len(SHAPES)] for i in range(len(SHAPES), len(tensors), len(SHAPES))
    )
    expected = [torch.nn.Parameter(master.clone()) for master in masters]
    for param, grad in zip(expected, grads.half):
        param.grad = grad.float() / 2
    optimizer = FusedAdamW(expected, lr=LR, weight_decay=WEIGHT_DECAY)
    for _ in range(3):
        variant.run()
        optimizer.step()
    for i, param in enumerate(expected):
        state = optimizer.state[param]
        torch.testing.assert_close(masters[i], param.detach())
        torch.testing.assert_close(averages[i], state["exp_avg"])
        torch.testing.assert_close(squares[i], state["exp_avg_sq"])
        assert torch.equal(models[i], masters[i].half())


@pytest.mark.parametrize("tensor, element", [(0, 2), (1, 63), (3, 70_000), (3, 0)])
def test_skips_after_an_overflow(tensor, element):
    grads = Grads(SHAPES, "cpu")
    grads.half[tensor].flatten()[element] = torch.inf
    variant = bare_step(grads)
    before = [each.clone() for each in variant.tensors()]
    variant.run()
    assert all(torch.equal(a, b) for a, b in zip(before, variant.tensors()))

"""Ranks that step by their own grads and average now and then, as docs/distributed.md does."""

from __future__ import annotations

import contextlib
import pathlib
from dataclasses import dataclass

import pytest
import torch
from nets import linear_net, overflow_at, sgd, train_step
from processes import gloo
from torch import distributed
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from torchamp import amp

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed"),
    pytest.mark.xdist_group("local_steps"),
]

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "distributed.md"
STEPS, PERIOD = 6, 3
#: The step and the rank of an overflow: one after which ranks average.
OVERFLOW = (2, 1)
LEVELS = ("O0", "O1", "O2", "O5")


def average():
    """The docs' average."""
    section = DOCS.read_text().split("## Local steps\n", 1)[1]
    names = {"torch": torch}
    exec(section.split("```python\n", 1)[1].split("```", 1)[0], names)
    return names["average"]


@dataclass(frozen=True)
class Training:
    level: str

    def __call__(self) -> None:
        model = linear_net()
        for param in model.parameters():
            distributed.broadcast(param.detach(), 0)
        optimizer = sgd(model)
        amp.initialize(model, optimizer, opt_level=self.level, loss_scale="dynamic", verbosity=0)
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 0}})
        for step in range(STEPS):
            self.step(model, optimizer, step)
            if step % PERIOD == PERIOD - 1:
                own = weights_of(model)
                average()(model)
                self.check(own, weights_of(model), list(amp.master_params(optimizer)))
        overflowed = distributed.get_rank() == OVERFLOW[1]
        scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
        assert scale == (512.0 if overflowed else 1024.0)

    def step(self, model, optimizer, step: int) -> None:
        here = (step, distributed.get_rank())
        before = weights_of(model)
        with overflow_at(model[0].bias) if here == OVERFLOW else contextlib.nullcontext():
            train_step(model, optimizer, 7 * step + here[1])
        is_same = all(map(torch.equal, before, weights_of(model)))
        assert is_same == (here == OVERFLOW)

    def check(self, own, averaged, masters) -> None:
        assert gloo.are_same(averaged) and not gloo.are_same(own)
        for value, result, master in zip(own, averaged, masters):
            distributed.all_reduce(value)
            assert torch.equal(result, value / distributed.get_world_size())
            assert torch.equal(result, master.detach())


def weights_of(model) -> list[torch.Tensor]:
    state = model.state_dict()
    return [state[name].clone() for name, _ in model.named_parameters()]


def refused() -> None:
    model = linear_net()
    wrapped = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(PERIOD))
    with pytest.raises(TypeError, match=r"expected optimizers\[0\] not to average in its step"):
        amp.initialize(model, wrapped, opt_level="O2", verbosity=0)
    assert {param.dtype for param in model.parameters()} == {torch.float32}


CASES = {**{level: Training(level) for level in LEVELS}, "refused": refused}


test_two_ranks = gloo.tests_on(2, CASES)

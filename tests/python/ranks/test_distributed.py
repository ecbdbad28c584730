"""What initialize says to several ranks."""

import functools

import pytest
import torch
from nets import Net, batch, overflow_at, sgd
from processes import gloo
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from torchamp import amp

LEVELS = ["O0", "O1", "O2", "O5"]
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch has no distributed")


def _overflow(level: str) -> None:
    """The second rank alone overflows."""
    torch.manual_seed(0)
    model = Net()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=1)
    parallel = DistributedDataParallel(model)
    x, target = batch(0)
    with overflow_at(model.first.bias, float("inf") if distributed.get_rank() == 1 else 0.0):
        loss = torch.nn.functional.cross_entropy(parallel(x).float(), target)
        amp.scale_loss(loss, optimizer).backward()
    optimizer.step()
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15, "all ranks skip"


def test_the_first_rank_alone_speaks(capfd):
    outcomes = gloo.run(2, {level: functools.partial(_overflow, level) for level in LEVELS})
    assert not any(outcomes.values()), outcomes
    said = capfd.readouterr().err
    for level in LEVELS:
        assert said.count(f"opt_level {level}") == 1
    assert said.count("step skipped") == len(LEVELS)

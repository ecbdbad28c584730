"""The loss scale over ten thousand steps against apex's rule."""

import random

import pytest
import torch
from nets import sgd
from reference.loss_scaler import LossScaler as ReferenceScaler
from torch import nn

from torchamp import amp


def script(name: str) -> list[float]:
    """The value added to the gradient of each of 10,000 steps; 0 is a clean step."""
    rng = random.Random(name)
    odds = {"clean": 0.0, "rare": 1 / 1500, "often": 1 / 500}[name]
    values = [float("inf"), float("nan"), float("-inf")]
    return [rng.choice(values) if rng.random() < odds else 0.0 for _ in range(10_000)]


LIMITS = {"min_loss_scale": 512.0, "max_loss_scale": 2.0**18}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "limits"), [("clean", {}), ("rare", {}), ("often", LIMITS)])
def test_the_loss_scale_over_ten_thousand_steps(name, limits):
    torch.manual_seed(0)
    param = nn.Linear(1, 1, bias=False)
    model, optimizer = amp.initialize(
        param, sgd(param, lr=2.0**-10), opt_level="O2", verbosity=0, **limits
    )
    scaler, reference = optimizer._torchamp.session.scalers[0], ReferenceScaler(**limits)
    weight = model.weight
    zero = torch.zeros_like(weight)
    master = next(amp.master_params(optimizer))
    for planted in script(name):
        before = master.item()
        with amp.scale_loss(weight.float().sum() * 2.0**-9, optimizer) as scaled_loss:
            scaled_loss.backward()
            weight.grad += planted + zero
        optimizer.step()
        optimizer.zero_grad()
        reference.update(planted != 0)
        assert scaler.state() == (reference.loss_scale, reference.unskipped)
        assert (master.item() == before) == (planted != 0)

"""Training in float8 reaches the losses of its level."""

import pytest
import torch
from nets import adam
from products import LEVELS, Blocks, in_float8
from torch import nn

from torchamp import amp


def final_loss(level: str, seed: int, names: list[str]) -> float:
    """Of a network that learns what another one says of random inputs."""
    torch.manual_seed(seed)
    teacher, model = Blocks(), Blocks()
    if names:
        model, optimizer = in_float8(level, model, names, optimizer=adam)
    else:
        model, optimizer = amp.initialize(model, adam(model), opt_level=level, verbosity=0)
    losses = []
    for _ in range(120):
        x = torch.randn(64, 32)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), teacher(8 * x).argmax(1))
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        losses.append(loss.item())
    amp.release(model)
    return sum(losses[-20:]) / 20


@pytest.mark.parametrize("level", LEVELS)
def test_losses_are_within_the_spread_of_the_seeds(level):
    plain = torch.tensor([final_loss(level, seed, []) for seed in range(5)])
    found = torch.tensor([final_loss(level, seed, ["ff"]) for seed in range(5)])
    assert found.mean() < plain.mean() + plain.std()
    assert plain.mean() < 1.2 < torch.tensor(5.0).log()  # it learns

"""adopt_data_writes: writes that bypass PyTorch's version counters, through `.data`, in any layout
and of masters. test_core_states.cpp has every sequence of them."""

import pytest
import torch
from nets import (
    LEVELS,
    MASTER_LEVELS,
    adam,
    initialized,
    linear_net,
    master_values,
    sgd,
    train_step,
    warned,
)
from torch import nn

from torchamp import Amp, amp
from torchamp.optimizers import FusedSGD


def fused(model):
    return FusedSGD(model.parameters(), lr=0.125, momentum=0.5)


MAKERS = [sgd, adam, fused]


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("make", MAKERS)
def test_clamped_masters_stay_clamped(device, make, level):
    """As in WGANs whose critic is clamped by amp.master_params."""
    model, optimizer = initialized(level, linear_net(), make, device=device, adopt_data_writes=True)
    for i in range(4):
        train_step(model, optimizer, seed=i)
        for param in amp.master_params(optimizer):
            param.data.clamp_(-0.0625, 0.0625)
    expected = master_values(optimizer)
    assert all(map(torch.equal, model.state_dict().values(), expected))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train_step(model, optimizer)
    assert all(map(torch.equal, master_values(optimizer), expected))
    rounded = [value.to(model[0].weight.dtype) for value in expected]
    assert all(map(torch.equal, model.parameters(), rounded))


LAYOUTS = {
    "plain": torch.zeros(4, 4),
    "odd": torch.zeros(3, 5),
    "one": torch.zeros(1),
    "scalar": torch.zeros(()),
    "channels_last": torch.zeros(2, 4, 2, 2).to(memory_format=torch.channels_last),
    "transposed": torch.zeros(4, 8).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_are_seen_in_any_layout(layout):
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(LAYOUTS[layout] + torch.randn(LAYOUTS[layout].shape))
    optimizer = sgd(model, lr=0.0)
    Amp(model, optimizer, "O2", verbosity=0, adopt_data_writes=True)
    master = next(amp.master_params(optimizer))
    before = master.detach().clone()
    optimizer.step()
    assert torch.equal(master, before)
    last = tuple(size - 1 for size in model.weight.shape)
    model.weight.data[last] = 0.5
    optimizer.step()
    assert master[last] == 0.5 and (master != before).sum() == 1


def test_unless_asked_for_masters_win():
    model = linear_net()
    optimizer = sgd(model, lr=0.0)
    Amp(model, optimizer, "O2", verbosity=0)
    train_step(model, optimizer)
    before = model[0].weight.detach().clone()
    model[0].weight.data.fill_(0.5)
    train_step(model, optimizer)
    assert torch.equal(model[0].weight, before)


class ActNorm(nn.Module):
    """Starts by the data of its first batch, as in Glow."""

    def __init__(self):
        super().__init__()
        self.bias, self.is_ready = nn.Parameter(torch.zeros(4)), False

    def forward(self, x):
        if not self.is_ready:
            self.bias.data.copy_(-x.mean(0))
            self.is_ready = True
        return x + self.bias


UNDONE = (
    "step: expected parameters to hold what initialize has left in them, or what was written in a "
    "way that PyTorch counts, got one of sizes [4] that was written through .data, which the step "
    "undoes; write it in amp.float32_params(model), in C++ amp::Float32Params, or initialize with "
    "adopt_data_writes"
)


def started_by_data(level, make, prepare, **options):
    """The warnings, and the largest bias."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), ActNorm(), nn.Linear(4, 1))
    model, optimizer = initialized(level, model, make, max_loss_scale=64.0, **options)
    x = torch.full((8, 4), 7.0)
    prepare(lambda: model(x), model)
    with warned() as texts:
        for _ in range(3):
            optimizer.zero_grad()
            amp.scale_loss(model(x).square().mean(), optimizer).backward()
            optimizer.step()
    return texts, float(model[1].bias.detach().abs().max())


def slow(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def slow_fused(model):
    return FusedSGD(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("make", [slow, slow_fused])
@pytest.mark.parametrize("level", LEVELS)
def test_a_start_by_data_that_a_step_undoes_is_told(level, make):
    told, largest = started_by_data(level, make, lambda *_: None)
    assert told == ([UNDONE] if level in MASTER_LEVELS else [])
    assert level in MASTER_LEVELS or largest > 1


def within_float32(forward, model):
    with amp.float32_params(model):
        forward()


@pytest.mark.parametrize("make", [slow, slow_fused])
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_its_remedies(level, make):
    for told, largest in (
        started_by_data(level, make, within_float32),
        started_by_data(level, make, lambda *_: None, adopt_data_writes=True),
    ):
        assert told == [] and largest > 1

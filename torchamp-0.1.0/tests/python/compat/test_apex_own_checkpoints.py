"""Checkpoints of one level that another restores, and the loss scales in them."""

import copy

import pytest
import torch
from apex import amp
from apex.amp import _amp_state
from nets import LEVELS
from torch import nn

#: What a level keeps less precisely than float32.
ROUNDED = {"O3": torch.float16}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(1))
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.conv(x * self.factor)))


def new(level=None, num_losses=1, **options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625, momentum=0.5)
    if level is not None:
        start(model, optimizer, level, num_losses, **options)
    return model, optimizer


def start(model, optimizer, level, num_losses, **options):
    amp.initialize(model, optimizer, opt_level=level, num_losses=num_losses, verbosity=0, **options)


def images(seed, count=4):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def train(model, optimizer, seed, num_losses):
    optimizer.zero_grad()
    out = model(images(seed)).float()
    for i in range(num_losses):
        loss = (out * out.detach().roll(1)).mean() * float(i + 1)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward(retain_graph=i + 1 < num_losses)
    optimizer.step()
    return out.detach()


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("num_losses", [1, 2])
@pytest.mark.parametrize("amp_first", [True, False])
@pytest.mark.parametrize("here", LEVELS)
@pytest.mark.parametrize("there", LEVELS)
def test_a_level_goes_on_where_another_stopped(there, here, amp_first, num_losses):
    torch.manual_seed(2)
    model, optimizer = new(there, num_losses)
    for seed in range(3):
        train(model, optimizer, seed, num_losses)
    checkpoint = {
        "model": state_of(model),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "amp": amp.state_dict(),
    }
    floating = [t for t in checkpoint["model"].values() if t.is_floating_point()]
    assert len(floating) == 7 and {t.dtype for t in floating} == {torch.float32}

    expected = []
    for seed in range(3, 6):
        out = train(model, optimizer, seed, num_losses)
        expected.append((out, state_of(model)))
    del model, optimizer

    model, optimizer = new(here if amp_first else None, num_losses)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    if not amp_first:
        start(model, optimizer, here, num_losses)
    if here == there:
        amp.load_state_dict(checkpoint["amp"])
    rounded = ROUNDED.get(here, torch.float32)
    loaded = {
        name: tensor.to(rounded).float() if tensor.is_floating_point() else tensor
        for name, tensor in checkpoint["model"].items()
    }
    assert_equal(state_of(model), loaded)

    for seed, (out, state) in zip(range(3, 6), expected):
        got = train(model, optimizer, seed, num_losses)
        if here == there:
            assert torch.equal(got, out)
            assert_equal(state_of(model), state)
        else:
            assert (got - out).norm() < 0.05 * out.norm()


@pytest.mark.parametrize(
    ("level", "options"), [("O1", {}), ("O2", {}), ("O3", {"loss_scale": "dynamic"})]
)
@pytest.mark.parametrize("overflows", [(0, 1, 2), (2, 1, 0), (1, 1, 1)])
def test_each_loss_has_its_own_overflows_in_the_checkpoint(level, options, overflows):
    steps = 3
    model, optimizer = new(level, len(overflows), **options)
    before = [scaler.loss_scale() for scaler in _amp_state.loss_scalers]
    for step in range(steps):
        optimizer.zero_grad()
        for i, count in enumerate(overflows):
            x = images(step) * (2.0**17 if step < count else 1.0)
            with amp.scale_loss(model(x).float().mean(), optimizer, loss_id=i) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
    expected = [scale / 2.0**count for scale, count in zip(before, overflows)]
    assert [scaler.loss_scale() for scaler in _amp_state.loss_scalers] == expected
    saved = amp.state_dict()
    assert [entry["loss_scale"] for entry in saved.values()] == expected
    assert [entry["unskipped"] for entry in saved.values()] == [steps - n for n in overflows]

    del model, optimizer
    model, optimizer = new(level, len(overflows), **options)
    amp.load_state_dict(saved)
    assert [scaler.loss_scale() for scaler in _amp_state.loss_scalers] == expected
    for i, scale in enumerate(expected):
        with amp.scale_loss(torch.ones(()), optimizer, loss_id=i) as scaled_loss:
            assert scaled_loss.item() == scale
    del model

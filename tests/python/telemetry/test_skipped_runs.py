"""Long runs of skipped steps: what the program is told, how they end, and what training does after
them."""

import math
import pickle

import pytest
import torch
from nets import Net, batch, finished, initialized, loss_of, sgd, train_step
from torch import nn

from torchamp import amp, optimizers

MAKERS = {"torch's": sgd, "fused": lambda model: optimizers.FusedSGD(model.parameters(), 0.1)}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def bad_step(model, optimizer, factor=math.nan):
    """A step of a loss that is not finite."""
    optimizer.zero_grad()
    amp.scale_loss(loss_of(model) * factor, optimizer).backward()
    optimizer.step()


@pytest.mark.parametrize("factor", [math.nan, math.inf])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_loss_that_is_not_finite_is_named(level, make, factor, heard, device):
    model, optimizer = initialized(level, Net(), make, device, verbosity=1)
    heard.take()
    bad_step(model, optimizer, factor)
    finished(optimizer)
    assert heard.take() == ("INFO: loss 0 is not finite: step skipped, loss scale now 32768\n")


def test_too_many_in_a_row_end_the_run(make):
    model, optimizer = initialized("O2", Net(), make, max_consecutive_skips=3)
    before = [param.clone() for param in model.parameters()]
    for _ in range(2):
        bad_step(model, optimizer)
    train_step(model, optimizer)
    with torch.no_grad():
        for param, value in zip(model.parameters(), before):
            param.copy_(value)
    for _ in range(2):
        bad_step(model, optimizer)
    with pytest.raises(
        RuntimeError,
        match="expected fewer than max_consecutive_skips = 3 skipped steps in a row, got 3, loss "
        "scale from [0-9]+ to [0-9]+: the loss itself is not finite",
    ):
        bad_step(model, optimizer)
    assert all(map(torch.equal, before, model.parameters()))
    train_step(model, optimizer)
    assert not torch.equal(before[0], next(model.parameters()))


class Square(nn.Module):
    def forward(self, x):
        return x * x


PLACES = {
    "an output": (300.0, 1.0, "the output of '1' (Square), in torch.float16"),
    "an input": (1e5, 1.0, "argument 'input' of the model, cast to torch.float16"),
    "the loss": (1.0, math.inf, ""),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_makes_a_loss_infinite_is_told_at_the_third_step_in_a_row(place, heard, device):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Square()).to(device)
    nn.init.eye_(model[0].weight)
    model, optimizer = initialized("O2", model, sgd, device, verbosity=1)
    size, factor, where = PLACES[place]
    heard.take()
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), size, device=device)).mean() * factor
        amp.scale_loss(loss, optimizer).backward()
        optimizer.step()
        finished(optimizer)
    first = f"the first tensor that is not is {where}; amp.preflight, before initialize, shows what"
    told = (
        f"INFO: loss not finite: {first} a format does not hold"
        if where
        else "INFO: loss not finite: every output of the model's modules is; look at the loss "
        "function"
    )
    lines = heard.take().splitlines()
    assert [i for i, line in enumerate(lines) if line == told] == [3] and len(lines) == 6
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_looks_at_copies_and_released_models():
    model, optimizer = initialized("O2", Net(), sgd, verbosity=1)
    for _ in range(2):
        bad_step(model, optimizer)
    twin = pickle.loads(pickle.dumps(model))
    seen = next(iter(twin._forward_hooks.values())).func.__self__
    twin(batch()[0])
    assert not seen._what and twin.first._forward_hooks
    amp.release(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_is_told_of_a_forward_that_a_graph_hides(heard):
    model, optimizer = initialized("O2", Net(), sgd, verbosity=1)
    compiled = torch.compile(model, backend="eager")
    heard.take()
    for _ in range(4):
        bad_step(compiled, optimizer)
    assert "loss not finite" not in heard.take()

"""Steps by code that calls no optimizer's `step`, which no overflow skips, are told once."""

import functools
import warnings

import pytest
import torch
from nets import LEVELS, Net, backward, initialized, loss_of, overflow_at, sgd, train_step, warned
from tensors import CountReads

from torchamp import amp

MESSAGE = (
    "scale_loss: expected the optimizer's step() between backwards, got parameters that other code "
    "has written, twice in a row, which no overflow skips; if that code is a step, let the "
    "optimizer's run it: optimizer.step = functools.partial(code, optimizer)"
)


@torch.no_grad()
def step_by_hand(optimizer):
    for param in optimizer.param_groups[0]["params"]:
        param.add_(param.grad, alpha=-0.1)


def told(model, optimizer, between, iterations=4) -> list[str]:
    """The warnings of a program that does `between` after each of its backwards."""
    with warned() as texts:
        for _ in range(iterations):
            backward(model, optimizer)
            between(model, optimizer)
    return texts


def then_zero(step):
    def between(model, optimizer):
        step(model, optimizer)
        optimizer.zero_grad()

    return between


by_hand = then_zero(lambda model, optimizer: step_by_hand(optimizer))


@pytest.mark.parametrize("level", LEVELS)
def test_one_is_told_where_an_overflow_or_masters_would_matter(level):
    is_told = level in ("O1", "O2", "O5")
    model, optimizer = initialized(level, Net(), sgd)
    assert told(model, optimizer, by_hand) == [MESSAGE] * is_told
    assert told(model, optimizer, by_hand) == []


def test_grads_may_be_zeroed_in_place_and_no_tensor_is_read():
    """A read would wait for the device, and end a capture."""
    model, optimizer = initialized("O2", Net(), sgd)

    def between(model, optimizer):
        step_by_hand(optimizer)
        optimizer.zero_grad(set_to_none=False)

    with CountReads() as reads:
        assert told(model, optimizer, between) == [MESSAGE]
    assert reads.reads == 0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_its_remedy(level):
    model, optimizer = initialized(level, Net(), sgd)
    optimizer.step = functools.partial(step_by_hand, optimizer)
    assert told(model, optimizer, then_zero(lambda _, optimizer: optimizer.step())) == []
    before = model.first.weight.detach().clone()
    with overflow_at(model.first.bias):
        backward(model, optimizer)
    optimizer.step()
    assert torch.equal(model.first.weight, before), "skipped"
    amp.release(model)  # the optimizer is in a cycle, which keeps O1


@torch.no_grad()
def add_noise(model, _):
    model.first.weight.add_(torch.randn_like(model.first.weight), alpha=0.01)


def load(model, _):
    model.load_state_dict(model.state_dict())


def write_float32(model, optimizer):
    with amp.float32_params(model):
        add_noise(model, optimizer)


class Decaying(torch.optim.SGD):
    @torch.no_grad()
    def decay(self):
        for param in self.param_groups[0]["params"]:
            param.mul_(0.9)


def perturb_and_step(model, optimizer):
    """SAM, written by hand."""
    with torch.no_grad():
        model.first.weight.add_(0.01)
    optimizer.zero_grad()
    backward(model, optimizer)
    with torch.no_grad():
        model.first.weight.sub_(0.01)
    optimizer.step()


@pytest.mark.parametrize(
    "between",
    [
        add_noise,  # to accumulated grads
        then_zero(load),
        then_zero(write_float32),
        then_zero(lambda _, optimizer: optimizer.decay()),
        then_zero(perturb_and_step),
        then_zero(lambda _, optimizer: optimizer.step()),
        then_zero(lambda *_: None),
    ],
    ids=["accumulated", "load", "float32_params", "own_method", "sam", "step", "nothing"],
)
@pytest.mark.parametrize("level", ["O2", "O5"])
def test_nothing_else_is_told(level, between):
    model, optimizer = initialized(level, Net(), lambda m: Decaying(m.parameters(), lr=0.1))
    assert told(model, optimizer, between) == []


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_steps_by_closures_that_are_called_often_are_seen(level):
    lbfgs = lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=4)  # noqa: E731
    model, optimizer = initialized(level, Net(), lbfgs, loss_scale=64.0)

    def closure():
        optimizer.zero_grad()
        backward(model, optimizer)
        return loss_of(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.step(closure)


def test_a_step_between_begins_the_count_again():
    model, optimizer = initialized("O2", Net(), sgd)
    assert told(model, optimizer, by_hand, iterations=1) == []
    train_step(model, optimizer)
    assert told(model, optimizer, by_hand, iterations=2) == []

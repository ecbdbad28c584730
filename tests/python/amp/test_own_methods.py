"""Methods of an optimizer's own class that are no steps: they find float32, and end no step."""

from __future__ import annotations

import copy

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, backward, initialized, linear_net, overflow_at
from torch import nn

from torchamp import _C, amp


class Own(torch.optim.SGD):
    def params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def get_lr(self) -> float:
        return self.param_groups[0]["lr"]

    def dtypes(self) -> set[torch.dtype]:
        return {param.dtype for param in self.params()}

    def halve(self) -> None:
        torch._foreach_mul_([param.grad for param in self.params()], 0.5)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.params(), 0.125)

    def zero_first(self) -> None:
        self.params()[0].grad.zero_()

    @torch.no_grad()
    def decay(self) -> None:
        torch._foreach_mul_(self.params(), 1 - 2.0**-12)

    @torch.no_grad()
    def fail(self) -> None:
        self.params()[0].fill_(1 + 2.0**-12)
        raise KeyError

    def step_twice(self, give_grads) -> None:
        self.decay()
        self.step()
        give_grads()
        self.step()
        self.decay()


def make(model: nn.Module) -> Own:
    return Own(model.parameters(), lr=0.125)


def pair(level: str) -> tuple:
    """A model and its optimizer at `level`, and the same in float32."""
    torch.manual_seed(0)
    plain = linear_net()
    model = copy.deepcopy(plain)
    return *initialized(level, model, make, loss_scale=64.0), plain, make(plain)


def give_grads(model: nn.Module, optimizer: Own, plain: nn.Module, seed: int = 0) -> None:
    """Both models get the same grads."""
    optimizer.zero_grad()
    backward(model, optimizer, seed)
    for param, other in zip(model.parameters(), plain.parameters()):
        other.grad = param.grad.to(torch.float32, copy=True)


def assert_close(model: nn.Module, plain: nn.Module, level: str) -> None:
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if level == "O3" else {"rtol": 1e-5, "atol": 1e-6}
    values = model.state_dict()
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(values[name], expected, **tolerance)


@pytest.mark.parametrize("method", ["halve", "clip", "zero_first", "decay"])
@pytest.mark.parametrize("level", LEVELS)
def test_grads_that_a_method_writes_are_stepped(level, method):
    model, optimizer, plain, other = pair(level)
    for seed in range(2):
        give_grads(model, optimizer, plain, seed)
        for each in (optimizer, other):
            getattr(each, method)()
        for param, expected in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(param.grad.float(), expected.grad, rtol=1e-2, atol=1e-4)
        for each in (optimizer, other):
            each.step()
        assert_close(model, plain, level)


@pytest.mark.parametrize("level", LEVELS)
def test_two_steps_within_a_method_are_two(level):
    model, optimizer, plain, other = pair(level)
    give_grads(model, optimizer, plain)
    first = [param.grad.clone() for param in plain.parameters()]
    optimizer.step_twice(lambda: give_grads(model, optimizer, plain, 1))
    second = [param.grad for param in plain.parameters()]

    def give(grads: list[torch.Tensor]) -> None:
        for param, grad in zip(plain.parameters(), grads):
            param.grad = grad

    give(first)
    other.step_twice(lambda: give(second))
    assert_close(model, plain, level)
    assert amp.telemetry(optimizer).steps == 2


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_of_the_second_skips_that_one(level):
    torch.manual_seed(0)
    model, optimizer = initialized(level, linear_net(), make, max_loss_scale=64.0)
    backward(model, optimizer)
    after_one = []

    def overflow() -> None:
        after_one.append(model.state_dict()["0.weight"].clone())
        optimizer.zero_grad()
        with overflow_at(model[0].weight):
            backward(model, optimizer, 1)

    optimizer.step_twice(overflow)
    expected = after_one[0] * (1 - 2.0**-12)
    torch.testing.assert_close(model.state_dict()["0.weight"], expected, rtol=1e-6, atol=0)
    told = amp.telemetry(optimizer)
    assert (told.steps, told.skipped_steps) == (2, 1)


def in_an_open_backward(model: nn.Module, optimizer: Own, method) -> None:
    with amp.scale_loss(model(torch.ones(2, 4)).float().sum(), optimizer) as scaled_loss:
        method()
        scaled_loss.backward()
        method()


def after_delay_unscale(model: nn.Module, optimizer: Own, method) -> None:
    backward(model, optimizer, delay_unscale=True)
    method()
    backward(model, optimizer)


def beside_strays(model: nn.Module, optimizer: Own, method) -> None:
    other, others = initialized("O2", linear_net())
    with amp.scale_loss(other(model(torch.ones(2, 4)).float().mean() * torch.ones(2, 4)), others):
        pass
    method()
    others.zero_grad()
    optimizer.zero_grad()
    backward(model, optimizer)


@pytest.mark.parametrize("where", [in_an_open_backward, after_delay_unscale, beside_strays])
@pytest.mark.parametrize("method", ["get_lr", "dtypes"])
@pytest.mark.parametrize("level", LEVELS)
def test_it_raises_nothing_and_leaves_the_step_as_it_is(level, method, where):
    model, optimizer, _, _ = pair(level)
    twin, twins, _, _ = pair(level)
    where(model, optimizer, getattr(optimizer, method))
    where(twin, twins, lambda: None)
    for each in (optimizer, twins):
        each.step()
    states = model.state_dict(), twin.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("level", LEVELS)
def test_where_there_are_masters_parameters_are_float32(level):
    model, optimizer, _, _ = pair(level)
    own = {param.dtype for param in model.parameters()}
    assert optimizer.dtypes() == ({torch.float32} if level in MASTER_LEVELS else own)
    assert {param.dtype for param in model.parameters()} == own


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_it_finds_what_the_groups_hold_now(level):
    """Float32 too."""
    model, optimizer = initialized(
        level, linear_net(), lambda m: Own([m[0].weight], lr=0.125), loss_scale=64.0
    )
    optimizer.param_groups[0]["params"].append(model[0].bias)
    assert optimizer.dtypes() == {torch.float32}


def test_one_that_calls_no_torch_lends_nothing(monkeypatch):
    _, optimizer = initialized("O2", linear_net(), make)
    begun, begin = [], _C.Loan.begin
    monkeypatch.setattr(_C.Loan, "begin", lambda loan: (begun.append(loan), begin(loan)))
    assert optimizer.get_lr() == 0.125 and not begun
    optimizer.decay()
    assert len(begun) == 1


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_an_exception_keeps_what_was_written(level):
    model, optimizer, _, _ = pair(level)
    with pytest.raises(KeyError):
        optimizer.fail()
    assert (model.state_dict()["0.weight"] == 1 + 2.0**-12).all()
    assert model[0].weight.dtype != torch.float32


class AsksTheModel(Own):
    def step(self, closure=None) -> None:
        with torch.no_grad():
            self.output = self.model(torch.ones(2, 4))
        super().step(closure)

    def ask(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.ones(2, 4))


@pytest.mark.parametrize("level", LEVELS)
def test_a_forward_computes_in_the_dtype_of_the_parameters(level):
    torch.manual_seed(0)
    plain = linear_net()
    expected = plain(torch.ones(2, 4))
    model, optimizer = initialized(
        level, copy.deepcopy(plain), lambda m: AsksTheModel(m.parameters(), lr=0.125), loss_scale=1
    )
    optimizer.model = model
    exact = level in ("O0", *MASTER_LEVELS)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(optimizer.ask().float(), expected, **tolerance)
    backward(model, optimizer)
    optimizer.step()
    torch.testing.assert_close(optimizer.output.float(), expected, **tolerance)
    del optimizer.model  # O1 ends with the model

"""A program sees one parameter, the model's: in groups, in `state`, in a step, in its own lists.
Masters are compared with a float32 model that torch's optimizer steps by the same grads."""

from __future__ import annotations

import abc
import contextlib
import copy
import math
import operator
import pickle
import typing
from collections.abc import Callable, Iterator

import pytest
import torch
from nets import (
    LEVELS,
    MASTER_LEVELS,
    adam,
    backward,
    fused_adam,
    initialized,
    linear_net,
    loss_of,
    sgd,
    train_step,
    warned,
)
from own_list import OwnList
from torch import nn

from torchamp import amp

T = typing.TypeVar("T")


class Parametric(torch.optim.SGD, typing.Generic[T]):
    pass


def kind_of(name: str, metaclass: type, *bases: type, **namespace: typing.Any) -> typing.Any:
    namespace = {"__module__": __name__, **namespace}
    return metaclass(name, (*bases, torch.optim.SGD), namespace)


Abstract = kind_of("Abstract", abc.ABCMeta)
WithMetaclass = kind_of("WithMetaclass", type("Marked", (type,), {}))
Slots = type("Slots", (), {"__slots__": ()})
WithSlots = kind_of("WithSlots", type, Slots, __slots__=("note",))
KINDS = [Abstract, Parametric, WithMetaclass, WithSlots]


class SAM(torch.optim.Optimizer):
    """As written by its users: perturbs weights, and puts them back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {"rho": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.5)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for param in self.param_groups[0]["params"]:
            self.state[param]["old"] = param.data.clone()
            param.add_(param.grad, alpha=self.param_groups[0]["rho"])

    @torch.no_grad()
    def second_step(self) -> None:
        for param in self.param_groups[0]["params"]:
            param.data = self.state[param]["old"]
        self.base.step()


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, whose groups and states are its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.slow = inner, {}
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self) -> None:
        step_and_average(self)


class BareLookahead(torch.optim.Optimizer):
    """One that leaves out Optimizer's __init__, and so torch's wrapper of step."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.slow, self.defaults = inner, {}, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self) -> None:
        step_and_average(self)


class LookaheadByProperty(BareLookahead):
    """One that has no groups of its own, as LARC."""

    defaults, state, param_groups = (
        property(operator.attrgetter(f"inner.{name}"))
        for name in ("defaults", "state", "param_groups")
    )

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.slow = inner, {}


@torch.no_grad()
def step_and_average(optimizer: Lookahead | BareLookahead) -> None:
    params = optimizer.param_groups[0]["params"]
    if not optimizer.slow:
        optimizer.slow = {param: param.clone() for param in params}
    optimizer.inner.step()
    for param in params:
        param.copy_(optimizer.slow[param].lerp_(param, 0.5))


def pair(level: str, make: Callable) -> tuple:
    """A model and its optimizer at `level`, and the same in float32."""
    torch.manual_seed(0)
    plain = linear_net()
    model = copy.deepcopy(plain)
    return *initialized(level, model, make, loss_scale=64.0), plain, make(plain)


def give_grads(model: nn.Module, plain: nn.Module) -> None:
    for param, other in zip(model.parameters(), plain.parameters()):
        other.grad = param.grad.to(torch.float32, copy=True)


def assert_masters(model: nn.Module, plain: nn.Module) -> None:
    values = model.state_dict()
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(values[name], expected, rtol=1e-5, atol=1e-6)


def grads_of(model: nn.Module, optimizer: typing.Any, plain: nn.Module) -> Iterator[None]:
    """Yields where both models have the same grads, which are to be stepped."""
    for seed in range(3):
        optimizer.zero_grad()
        backward(model, optimizer, seed)
        give_grads(model, plain)
        yield
        assert_masters(model, plain)


def stepped(level: str, make: Callable) -> tuple:
    """The model and optimizer after steps that are those of float32, and the float32 optimizer."""
    model, optimizer, plain, other = pair(level, make)
    for _ in grads_of(model, optimizer, plain):
        optimizer.step()
        other.step()
    return model, optimizer, other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_classes_are_the_users(level, kind):
    _, optimizer, other = stepped(level, lambda m: kind(m.parameters(), lr=0.1, momentum=0.5))
    assert type(optimizer) is kind and not kind.__subclasses__()
    assert repr(optimizer) == repr(other)
    assert b"torchamp" not in pickle.dumps(optimizer)


@pytest.mark.parametrize("make", [adam, fused_adam])
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_groups_and_states_have_the_model_s_parameters(level, make):
    model, optimizer = initialized(level, linear_net(), make)
    weights = list(model.parameters())
    for seed in range(2):
        train_step(model, optimizer, seed)
        held = optimizer.param_groups[0]["params"]
        assert all(map(operator.is_, held, weights)) and list(optimizer.state) == weights
    assert optimizer.state[weights[0]]["exp_avg"].dtype == torch.float32
    assert weights[0] in set(held) and optimizer.state_dict()["state"].keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_its_own_list_ids_and_attributes(level):
    model, _, _ = stepped(level, lambda m: OwnList(m.parameters(), lr=0.1))
    assert model[0].weight.dtype != torch.float32


def test_copies_and_pickles_of_all_that_it_has():
    _, optimizer, _ = stepped("O2", lambda m: OwnList(m.parameters(), lr=0.1))
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is OwnList
        with pytest.raises(RuntimeError, match="that initialize returned, got an OwnList"):
            amp.telemetry(copied)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_methods_beside_step(level):
    model, optimizer, plain, other = pair(level, SAM)
    for _ in grads_of(model, optimizer, plain):
        optimizer.first_step()
        other.first_step()
        optimizer.zero_grad()
        backward(model, optimizer)
        give_grads(model, plain)
        optimizer.second_step()
        other.second_step()


class Halving(torch.optim.SGD):
    """Halves the grads before the update, in place."""

    def step(self, closure: Callable | None = None) -> None:
        torch._foreach_mul_([param.grad for param in self.param_groups[0]["params"]], 0.5)
        super().step(closure)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_what_a_step_does_to_grads_stays(level):
    model, optimizer, plain, other = pair(level, lambda m: Halving(m.parameters(), lr=0.1))
    for _ in grads_of(model, optimizer, plain):
        optimizer.step()
        other.step()
        for param, expected in zip(model.parameters(), plain.parameters()):
            assert torch.equal(param.grad.float(), expected.grad)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_within_a_wrapper_changes_nothing(level):
    model, optimizer = initialized(level, linear_net(), SAM)
    for factor in (1.0, math.inf):
        before = [master.clone() for master in amp.master_params(optimizer)]
        for step in (optimizer.first_step, optimizer.second_step):
            amp.scale_loss(factor * loss_of(model), optimizer).backward()
            step()
            optimizer.zero_grad()
        after = list(amp.master_params(optimizer))
        assert all(map(torch.equal, before, after)) == (factor == math.inf)


@pytest.mark.parametrize(
    "kind, given",
    [
        (Lookahead, "inner"),
        (Lookahead, "outer"),
        (BareLookahead, "inner"),
        (LookaheadByProperty, "inner"),
    ],
)
@pytest.mark.parametrize("make", [sgd, adam, fused_adam])
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_one_around_another(level, make, kind, given):
    torch.manual_seed(0)
    model = linear_net()
    plain = copy.deepcopy(model)
    other, optimizer = kind(make(plain)), kind(make(model))
    chosen = optimizer if given == "outer" else optimizer.inner
    amp.initialize(model, chosen, opt_level=level, verbosity=0, loss_scale=64.0)
    for _ in grads_of(model, chosen, plain):
        optimizer.step()
        other.step()


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_states_made_in_16_bits(level):
    """They are float32 from the first step on, and those of a float32 optimizer stay exact."""
    model, optimizer = initialized(level, linear_net(), adam)
    backward(model, optimizer)
    weight = model[0].weight
    narrow = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[weight] = {"step": torch.zeros(()), **narrow}
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["exp_avg"] += 1e-6
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.state[weight]["exp_avg"], saved["state"][0]["exp_avg"])


@pytest.mark.parametrize("make", [adam, fused_adam])
def test_a_copy_without_its_model_tells_so_once(make):
    model, optimizer = initialized("O5", linear_net(), make)
    train_step(model, optimizer)
    twin = copy.deepcopy(optimizer)
    for param in twin.param_groups[0]["params"]:
        param.grad = torch.zeros_like(param)
    with warned() as texts:
        for _ in range(2):
            with contextlib.suppress(RuntimeError):  # torch's Adam does not mix dtypes
                twin.step()
            initialized("O0")
    assert ["as a copy without its model does" in text for text in texts] == [True]


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


@pytest.mark.parametrize("make", [sgd, adam, lbfgs, fused_adam])
@pytest.mark.parametrize("level", LEVELS)
def test_closures(level, make):
    """They see the model's weights and true grads; the steps are those of float32."""
    model, optimizer, plain, other = pair(level, make)
    dtype, seen = model[0].weight.dtype, []

    def closure() -> torch.Tensor:
        assert model[0].weight.dtype == dtype
        optimizer.zero_grad()
        backward(model, optimizer)
        grads = [param.grad.float().clone() for param in model.parameters()]
        seen.append((sum(grad.square().sum() for grad in grads), grads))  # as loss
        return seen[-1][0]

    def replayed() -> torch.Tensor:
        loss, grads = next(replay)
        for param, grad in zip(plain.parameters(), grads):
            param.grad = grad
        return loss

    optimizer.step(closure)
    replay = iter(seen)
    other.step(replayed)
    assert (len(seen) > 1) == (make is lbfgs) and next(replay, None) is None
    if level != "O3":  # which has no masters
        assert_masters(model, plain)


def test_masters_require_grads_where_the_model_s_parameters_do():
    model, optimizer = initialized("O2", linear_net())
    frozen, *others = model.parameters()
    frozen.requires_grad_(False)
    masters = list(amp.master_params(optimizer))
    assert [master.requires_grad for master in masters] == [False] + [True] * len(others)
    frozen.requires_grad_(True)
    assert all(master.requires_grad for master in amp.master_params(optimizer))


@pytest.mark.parametrize("make", [adam, fused_adam])
def test_a_look_up_makes_an_empty_state(make):
    model, optimizer = initialized("O5", linear_net(), make)
    param = next(model.parameters())
    assert optimizer.state[param] == {}
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="expected grads, got none"):
        optimizer.step()
    assert list(optimizer.state_dict()["state"].values()) == [{}]

"""The fused optimizers against torch's, and the guarantees that they add."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from torchamp import optimizers

#: our optimizer, torch's, arguments of both
PAIRS = {
    "adam": (optimizers.FusedAdam, torch.optim.Adam, {"lr": 1e-2}),
    "adam_l2": (optimizers.FusedAdam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "adam_maximize": (optimizers.FusedAdam, torch.optim.Adam, {"maximize": True, "eps": 1e-3}),
    "adamw": (optimizers.FusedAdamW, torch.optim.AdamW, {"lr": 1e-2}),
    "sgd": (optimizers.FusedSGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd_l2": (optimizers.FusedSGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (optimizers.FusedSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "dampening": (
        optimizers.FusedSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True},
    ),
    "nesterov": (
        optimizers.FusedSGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
}
OURS = {
    "adam": lambda params: optimizers.FusedAdam(params),
    "adamw": lambda params: optimizers.FusedAdamW(params),
    "sgd": lambda params: optimizers.FusedSGD(params, 0.1),
    "momentum": lambda params: optimizers.FusedSGD(params, 0.1, 0.9),
    "novograd": lambda params: optimizers.FusedNovoGrad(params),
    "lamb": lambda params: optimizers.FusedLAMB(params),
}
SIZES = [(3,), (17, 33), (0,), (2048,), (4, 3, 2, 2), ()]


def test_a_parameter_that_changed_its_dtype_is_stepped_on():
    moved, kept = (nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2))
    pair = [optimizers.FusedAdam([param], lr=0.1) for param in (moved, kept)]
    for step in range(4):
        if step == 2:
            moved.grad, moved.data = None, moved.data.double()
        for param, optimizer in zip((moved, kept), pair):
            param.grad = torch.cos(torch.arange(5.0) + step).to(param.dtype)
            optimizer.step()
    torch.testing.assert_close(moved.float(), kept, rtol=1e-5, atol=1e-6)
    assert pair[0].state[moved]["exp_avg"].dtype == torch.float64


@pytest.mark.parametrize("name", sorted({*optimizers.__all__} - {"FusedOptimizer"}))
def test_defaults_are_those_of_cpp(name):
    kind = getattr(optimizers, name)
    defaults = kind([nn.Parameter(torch.zeros(1))]).defaults
    for option in kind.options.specs:
        value = defaults.pop(option.name)
        assert (list(value) if option.is_betas else [float(value or 0)]) == option.defaults
    assert not defaults


def make_params(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    values = [torch.randn(size, generator=generator) for size in SIZES]
    params = [nn.Parameter(value.to(device, dtype)) for value in values]
    params[4].data = params[4].data.contiguous(memory_format=torch.channels_last)
    return params


def set_grads(params, step, dtype=None):
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator).to(param.device, dtype or param.dtype)
        param.grad = torch.empty_like(param, dtype=grad.dtype).copy_(grad)


def train(optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        set_grads(params, step)
        optimizer.step()


def two_groups(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.03}]


def everything(optimizer, params):
    """Copies of everything that a step may write."""
    states = [
        value.clone()
        for param in params
        for _, value in sorted(optimizer.state[param].items())
        if isinstance(value, torch.Tensor)
    ]
    return [param.detach().clone() for param in params] + states


def assert_same_bytes(before, after):
    assert len(before) == len(after)
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", OURS)
def test_params_without_grads_are_skipped(name, device):
    params = make_params(device)
    optimizer = OURS[name](params)
    set_grads(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state
    set_grads(params, 1)
    optimizer.step()
    if name != "sgd":
        assert [optimizer.state[params[i]]["step"].item() for i in (0, 1)] == [2, 1]


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.parametrize("direction", ["from_torch", "into_torch"])
def test_state_dicts_are_torchs(case, direction, device):
    ours, theirs, options = PAIRS[case]
    source, target = (theirs, ours) if direction == "from_torch" else (ours, theirs)
    params = make_params(device)
    first = source(two_groups(params), **options)
    train(first, params, 4)
    second = target(two_groups(params), **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    others = [nn.Parameter(param.detach().clone()) for param in params]
    straight = source(two_groups(others), **options)
    straight.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, params, 3, first=4)
    train(straight, others, 3, first=4)
    torch.testing.assert_close(params, others, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("how", ["load", "pickle", "deepcopy"])
def test_a_resumed_run_is_the_run_that_never_stopped(name, how, device):
    params = make_params(device, torch.float16)
    optimizer = OURS[name](params)
    train(optimizer, params, 3)
    if how == "load":
        copies = [nn.Parameter(param.detach().clone()) for param in params]
        resumed = OURS[name](copies)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    else:
        both = (params, optimizer)
        both = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
        copies, resumed = both
    train(optimizer, params, 3, first=3)
    train(resumed, copies, 3, first=3)
    assert_same_bytes(everything(optimizer, params), everything(resumed, copies))


def test_dispatch_modes_see_steps_of_mixed_learning_rates(device):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    names = []
    params = make_params(device)
    rates = [{"params": params[:2]}, {"params": params[2:], "lr": torch.tensor(0.3, device=device)}]
    optimizer = optimizers.FusedSGD(rates, 0.1)
    train(optimizer, params, 1)
    before = [param.detach().clone() for param in params]
    with Names():
        optimizer.step()
    count_of_the_empty_one = ["aten::select.int", "aten::add_.Scalar"]
    assert names == [*count_of_the_empty_one, "torchamp::fused_step"]
    for i, param in enumerate(params):
        torch.testing.assert_close(before[i] - param, (0.1 if i < 2 else 0.3) * param.grad)


class OwnStep(optimizers.FusedAdamW):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [optimizers.FusedAdamW, OwnStep])
def test_hooks_hear_of_steps_once(kind):
    params = make_params("cpu")
    optimizer = kind(params)
    set_grads(params, 0)
    heard = []
    handles = [
        optimizer.register_step_pre_hook(lambda *args: heard.append("before")),
        optimizer.register_step_post_hook(lambda *args: heard.append("after")),
        register_optimizer_step_post_hook(lambda *args: heard.append("any")),
    ]
    optimizer.step()
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert heard == ["before", "after", "any"]


def test_profilers_see_steps():
    params = make_params("cpu")
    optimizer = optimizers.FusedAdamW(params)
    set_grads(params, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()
    seen = [event.name for event in profile.events()]
    assert "Optimizer.step#FusedAdamW.step" in seen
    assert "Optimizer.zero_grad#FusedAdamW.zero_grad" in seen

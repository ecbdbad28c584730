"""Fused optimizers that keep moments and parameters in fewer bytes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from nets import MASTER_LEVELS, Net, initialized, train_step

from torchamp import optimizers
from torchamp._load import _C

MAKERS = {
    "adamw": lambda model, **how: optimizers.FusedAdamW(model.parameters(), 0.01, eps=1e-4, **how),
    "sgd": lambda model, **how: optimizers.FusedSGD(model.parameters(), 0.1, 0.5, **how),
    "novograd": lambda model, **how: optimizers.FusedNovoGrad(model.parameters(), **how),
}


def training(device, level, name="adamw", model=None, options=None, **how):
    net = copy.deepcopy(model or Net())
    make = lambda model: MAKERS[name](model, **how)  # noqa: E731
    return initialized(level, net, make, device, loss_scale="dynamic", **(options or {}))


def states_of(optimizer):
    return copy.deepcopy(optimizer.state_dict()["state"])


@pytest.mark.parametrize("level", [*MASTER_LEVELS, "O0", "O1"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "novograd"])
def test_moments_in_bfloat16(device, level, name):
    net = Net()
    small = training(device, level, name, net, state_dtype=torch.bfloat16)
    large = training(device, level, name, net)
    for step in range(6):
        for model, optimizer in (small, large):
            train_step(model, optimizer, step)
    for state in states_of(small[1]).values():
        for state_name in _C.state_names(small[1].algorithm_of(small[1].param_groups[0])):
            assert state[state_name].dtype is torch.bfloat16
    for left, right in zip(small[0].parameters(), large[0].parameters()):
        torch.testing.assert_close(left.float(), right.float(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("wide_first", [True, False])
def test_moments_change_their_dtype_at_a_load(device, wide_first):
    dtypes = (torch.float32, torch.bfloat16) if wide_first else (torch.bfloat16, torch.float32)
    first, second = (training(device, "O2", state_dtype=dtype) for dtype in dtypes)
    train_step(*first)
    second[1].load_state_dict(first[1].state_dict())
    for left, right in zip(states_of(first[1]).values(), states_of(second[1]).values()):
        assert right["exp_avg"].dtype is dtypes[1]
        torch.testing.assert_close(
            right["exp_avg"].float(), left["exp_avg"].float(), rtol=0.01, atol=0
        )
    train_step(*second, 1)


@pytest.mark.parametrize("stochastic", [True, False])
def test_small_updates_land_stochastically(device, stochastic):
    weight = torch.nn.Parameter(torch.ones(1 << 14, dtype=torch.bfloat16, device=device))
    optimizer = optimizers.FusedSGD([weight], 1e-3, stochastic_rounding=stochastic)
    for _ in range(200):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
    mean = weight.detach().double().mean().item()
    assert mean == pytest.approx(0.9, abs=2e-3) if stochastic else mean == 1.0


def test_copies_keep_the_choices():
    param = torch.nn.Parameter(torch.randn(3))
    optimizer = optimizers.FusedAdam([param], state_dtype=torch.bfloat16)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert made.state_dtype is torch.bfloat16 and not made.stochastic_rounding


def test_a_pickle_with_a_choice_that_is_no_more():
    """Earlier versions pickled split_masters."""
    optimizer = optimizers.FusedAdam([torch.nn.Parameter(torch.randn(3))])
    kept = {**optimizer.__getstate__(), "split_masters": True}
    made = optimizers.FusedAdam.__new__(optimizers.FusedAdam)
    made.__setstate__(pickle.loads(pickle.dumps(kept)))
    (param,) = made.param_groups[0]["params"]
    before = param.detach().clone()
    param.grad = torch.ones_like(param)
    made.step()
    assert not torch.equal(param, before)


def test_stochastic_rounding_without_states_resumes():
    """The count of steps, on which chance depends, is saved all the same."""

    def made(weight):
        param = torch.nn.Parameter(weight.clone())
        return param, optimizers.FusedSGD([param], lr=2.0**-12, stochastic_rounding=True)

    def trained(param, optimizer):
        for _ in range(4):
            param.grad = torch.ones_like(param)
            optimizer.step()

    whole, optimizer = made(torch.ones(64, dtype=torch.bfloat16))
    trained(whole, optimizer)
    resumed, other = made(whole.detach())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in ((whole, optimizer), (resumed, other)):
        trained(*each)
    assert torch.equal(whole, resumed)

"""Masters that FusedAdam keeps."""

import copy
import pickle

import pytest
import torch
from apex.optimizers import FusedAdam
from torch import nn

CASES = {
    "adam": (
        lambda p: FusedAdam(p, 1e-3, capturable=True, master_weights=True),
        lambda p: FusedAdam(p, 1e-3),
    ),
}
both = pytest.mark.parametrize("case", CASES)


def make_params(device):
    """A float16 and a float32 parameter."""
    generator = torch.Generator().manual_seed(5)
    values = [torch.randn(7, 3, generator=generator) for _ in range(2)]
    return [nn.Parameter(values[0].to(device).half()), nn.Parameter(values[1].to(device))]


def set_grads(params, step):
    generator = torch.Generator().manual_seed(step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator).half()
        param.grad = grad.to(param.device, param.dtype)


def train(optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        set_grads(params, step)
        optimizer.step()


@both
def test_low_precision_params_are_stepped_in_float32(case, device):
    mixed, plain = CASES[case]
    params = make_params(device)
    wide = [nn.Parameter(param.detach().float()) for param in params]
    optimizer, oracle = mixed(params), plain(wide)
    for step in range(50):
        set_grads(params, step)
        for param, exact in zip(params, wide):
            exact.grad = param.grad.float()
        optimizer.step()
        oracle.step()
    assert params[0].dtype == torch.float16 and torch.equal(params[0], wide[0].half())
    assert torch.equal(params[1], wide[1])
    assert optimizer.param_groups[0]["params"][0] is params[0]


@both
def test_a_resumed_run_is_the_run_that_never_stopped(case, device):
    mixed, _ = CASES[case]
    params, again = make_params(device), make_params(device)
    optimizer, resumed = mixed(params), mixed(again)
    train(optimizer, params, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"][0]["master_param"].dtype == torch.float32
    assert "master_param" not in saved["state"][1]
    for param, value in zip(again, params):
        param.data.copy_(value)
    resumed.load_state_dict(saved)
    train(optimizer, params, 3, first=3)
    train(resumed, again, 3, first=3)
    assert torch.equal(params[0], again[0]) and torch.equal(params[1], again[1])


@both
def test_masters_follow_a_write_to_the_params(case, device):
    """apex's masters adopted a broadcast or a load only before the first step."""
    params = make_params(device)
    optimizer = CASES[case][0](params)
    train(optimizer, params, 1)
    with torch.no_grad():
        params[0].fill_(5.0)
    train(optimizer, params, 1)
    assert (params[0].float() - 5.0).abs().max() < 0.5


@both
def test_torchs_grad_scaler_skips_and_unscales(case, device):
    params = make_params(device)
    optimizer = CASES[case][0](params)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    before = [param.detach().clone() for param in params]
    scaler.scale(sum((param.float() * float("inf")).sum() for param in params)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, params))
    optimizer.zero_grad()
    scaler.scale(sum(param.float().sum() for param in params)).backward()
    scaler.step(optimizer)
    twins = make_params(device)
    other = CASES[case][0](twins)
    for param in twins:
        param.grad = torch.ones_like(param)
    other.step()
    assert all(torch.equal(a, b) for a, b in zip(params, twins))


@both
def test_copies_and_pickles_have_masters_of_their_own(case, device):
    params = make_params(device)
    optimizer = CASES[case][0](params)
    train(optimizer, params, 2)
    twins = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    train(optimizer, params, 20, first=2)
    for twin in twins:
        others = twin.param_groups[0]["params"]
        train(twin, others, 20, first=2)
        assert all(torch.equal(a, b) for a, b in zip(others, params))

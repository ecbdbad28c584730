"""torchamp.GradScaler call by call: torch.amp's API, stages and errors, and our additions."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import nn

import torchamp
from torchamp import GradScaler


def make_scaler(device="cpu", **options) -> GradScaler:
    return GradScaler(torch.device(device).type, **{"init_scale": 4.0, **options})


def make_param(values=(1.0, 2.0), dtype=torch.float32, device="cpu") -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype, device=device))


def sgd(*params: torch.Tensor, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, **{"lr": 1.0, **options})


def backward(scaler: GradScaler, *params: torch.Tensor, factor: float = 1.0) -> None:
    """Sets the grad of every element of `params` to `factor`, scaled."""
    scaler.scale(sum((param.float() * factor).sum() for param in params)).backward()


def iterate(scaler, optimizer, overflow: bool = False) -> None:
    optimizer.zero_grad()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    backward(scaler, *params)
    if overflow:
        params[-1].grad.view(-1)[0] = math.inf
    scaler.step(optimizer)
    scaler.update()


def test_it_is_one_of_torchs():
    assert issubclass(GradScaler, torch.amp.GradScaler)
    *parameters, group, skip = inspect.signature(GradScaler).parameters.values()
    torchs = inspect.signature(torch.amp.GradScaler).parameters.values()
    assert [(each.name, each.kind, each.default) for each in parameters] == [
        (each.name, each.kind, each.default) for each in torchs
    ]
    own = [(each.name, each.kind, each.default) for each in (group, skip)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    assert own == [("process_group", keyword, None), ("skip_on_device", keyword, True)]
    assert torchamp.amp.GradScaler is GradScaler
    assert "GradScaler" in torchamp.amp.__all__


def test_scale_takes_lists_and_tuples(device):
    one, two = torch.ones((), device=device), torch.full((2,), 2.0, device=device)
    scaled = make_scaler(device).scale([one, (two, one)])
    assert scaled[0] == 4 and scaled[1][0].tolist() == [8, 8] and type(scaled[1]) is tuple


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scale_does_not_overflow_in_16_bits(dtype):
    outputs = torch.full((3,), 3.0, dtype=dtype, requires_grad=True)
    scaled = make_scaler(init_scale=2.0**16).scale(outputs)
    assert scaled.tolist() == [3 * 2.0**16] * 3
    assert scaled.dtype == torch.promote_types(dtype, torch.float32)
    scaled.sum().mul(2.0**-10).backward()
    assert outputs.grad.tolist() == [64.0] * 3


def test_arguments_and_their_getters():
    scaler = GradScaler("cpu", 8.0, 3.0, 0.25, 7, True)
    assert scaler.is_enabled() and scaler.get_scale() == 8.0
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (3.0, 0.25)
    assert scaler.get_growth_interval() == 7
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.125)
    scaler.set_growth_interval(1)
    optimizer = sgd(make_param())
    iterate(scaler, optimizer)
    assert scaler.get_scale() == 32.0
    iterate(scaler, optimizer, overflow=True)
    assert scaler.get_scale() == 4.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_a_scaler_for_it_is_off():
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = GradScaler()
    assert not scaler.is_enabled()


def test_disabled_it_does_nothing():
    scaler = make_scaler(enabled=False)
    param = make_param()
    optimizer = sgd(param)
    outputs = {"loss": param.sum()}
    assert scaler.scale(outputs) is outputs
    outputs["loss"].backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [0.0, 1.0] and scaler.get_scale() == 1.0
    assert scaler.state_dict() == {} and scaler.overflowed_params(optimizer) == []
    scaler.load_state_dict({"scale": 2.0})
    assert scaler.get_scale() == 1.0
    assert not pickle.loads(pickle.dumps(scaler)).is_enabled()
    with pytest.raises(RuntimeError, match="empty"):
        make_scaler().load_state_dict(scaler.state_dict())


def test_stages():
    scaler, optimizer = make_scaler(), sgd(make_param())
    backward(scaler, *optimizer.param_groups[0]["params"])
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    scaler.update()
    scaler.unscale_(optimizer)


def test_nothing_was_scaled():
    scaler, optimizer = make_scaler(), sgd(make_param())
    for call in (
        lambda: scaler.unscale_(optimizer),
        lambda: scaler.step(optimizer),
        lambda: scaler.update(),
    ):
        with pytest.raises(AssertionError, match="_scale is None"):
            call()


def test_nothing_was_checked():
    scaler, optimizer = make_scaler(), sgd(make_param())
    scaler.scale(torch.ones(()))
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    with pytest.raises(AssertionError, match="update: expected checked grads, got none"):
        scaler.update()


FUSED = {
    "torch's": lambda params: torch.optim.AdamW(params, fused=True),
    "ours": torchamp.optimizers.FusedAdamW,
    "plain": lambda params: sgd(*params),
}


@pytest.mark.parametrize("skip_on_device", [True, False])
@pytest.mark.parametrize("make", FUSED.values(), ids=FUSED)
def test_the_host_skips_where_it_is_to(make, skip_on_device):
    """Then libraries can tell that step was not called."""
    scaler, param = make_scaler(skip_on_device=skip_on_device), make_param()
    optimizer, calls = make([param]), []
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    for overflow in (False, True, False):
        before, called = param.detach().clone(), len(calls)
        for each in (scaler, copy.deepcopy(scaler)):
            iterate(each, optimizer, overflow)
        on_device = skip_on_device and make is not FUSED["plain"]
        assert len(calls) - called == (2 if on_device or not overflow else 0)
        assert torch.equal(param, before) == overflow


@pytest.mark.parametrize("new_scale", [2.0, 2, torch.tensor(2.0)])
def test_a_scale_of_ones_own(new_scale):
    scaler = make_scaler()
    scaler.scale(torch.ones(()))
    scaler.update(new_scale)
    if isinstance(new_scale, torch.Tensor):
        new_scale.fill_(9.0)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("new_scale", [torch.ones(2), torch.ones((), requires_grad=True)])
def test_a_scale_that_is_none(new_scale):
    scaler = make_scaler()
    scaler.scale(torch.ones(()))
    with pytest.raises(AssertionError, match="new_scale"):
        scaler.update(new_scale)
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("used", [False, True])
def test_state_goes_to_and_from_torchs(used):
    options = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 9}
    for source, target in ((GradScaler, torch.amp.GradScaler), (torch.amp.GradScaler, GradScaler)):
        saved, loaded = source("cpu", 8.0, **options), target("cpu")
        for _ in range(2):
            iterate(saved, sgd(make_param()))
        if used:
            iterate(loaded, sgd(make_param()))
        loaded.load_state_dict(saved.state_dict())
        assert (
            loaded.state_dict()
            == saved.state_dict()
            == {"scale": 8.0, **options} | {"_growth_tracker": 2}
        )
        for _ in range(7):
            iterate(loaded, sgd(make_param()))
        assert loaded.get_scale() == 24.0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_continue(copied):
    scaler, optimizer = make_scaler(growth_interval=3), sgd(make_param())
    for _ in range(2):
        iterate(scaler, optimizer)
    other = copied(scaler)
    assert other.state_dict() == scaler.state_dict()
    iterate(other, optimizer)
    assert (other.get_scale(), scaler.get_scale()) == (8.0, 4.0)
    iterate(scaler, optimizer, overflow=True)
    assert scaler.overflowed_params(optimizer) and not copied(scaler).overflowed_params(optimizer)
    backward(scaler, make_param())
    scaler.unscale_(optimizer)
    with pytest.raises(AssertionError):
        copied(scaler)

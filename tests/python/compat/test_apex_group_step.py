"""`group["step"]`, the count of steps that schedulers and checkpoints of apex's programs read."""

import copy

import pytest
import torch
from apex.optimizers import FusedAdam, FusedNovoGrad, FusedSGD
from compat.optimizers import (
    ALL,
    assert_equal,
    counting,
    counts_of,
    initialized,
    make_params,
    resumed_from,
    set_grads,
    shown,
    train,
)
from nets import overflow_at, train_step
from torch import nn


@counting
def test_the_count_is_there_after_each_step(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    for step in range(3):
        train(optimizer, params, 1, first=step)
        assert shown(optimizer) == [step + 1]
        saved = optimizer.state_dict()["param_groups"][0]["step"]
        assert saved == step + 1 and type(saved) is int
    on_host = type(optimizer.param_groups[0]["step"]) is int
    assert on_host == (device.type == "cpu")


def test_sgd_has_none(device):
    params = make_params(device)
    optimizer = FusedSGD(params, 0.1)
    train(optimizer, params, 1)
    assert "step" not in optimizer.param_groups[0]


@counting
def test_a_warm_up_that_reads_the_group(kind, device):
    """BERT's polynomial schedule: the next step's number is the group's, plus one. Every device
    divides by powers of two exactly."""
    params, base, total, warm = make_params(device), 1e-2, 128, 0.125
    optimizer = kind(params, **{**ALL[kind], "lr": base})
    (group,) = optimizer.param_groups
    lrs = []
    for step in range(50):
        done = (group["step"] + 1 if "step" in group else 1) / total
        group["lr"] = base * done / warm if done < warm else base * (1 - done) ** 0.5
        lrs.append(float(group["lr"]))
        train(optimizer, params, 1, first=step)
    done = [(step + 1) / total for step in range(50)]
    expected = [base * x / warm if x < warm else base * (1 - x) ** 0.5 for x in done]
    torch.testing.assert_close(lrs, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O5"])
def test_a_skipped_step_is_not_counted(level):
    make = lambda model: FusedAdam(model.parameters())  # noqa: E731
    model, optimizer = initialized(level, make, loss_scale="dynamic")
    seen = []
    for value in (float("inf"), 0.0, 0.0, float("inf"), 0.0):
        with overflow_at(model[0].weight, value):
            train_step(model, optimizer)
        seen.append(*shown(optimizer))
    assert seen == [0, 1, 2, 2, 3]


@counting
def test_torchs_grad_scaler_skips_without_counting(kind, device):
    params = make_params(device)
    optimizer = kind([{"params": params[:2]}, {"params": params[2:]}], **ALL[kind])
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    for factor, expected in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
        optimizer.zero_grad()
        scaler.scale(sum((param * factor).sum() for param in params)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert shown(optimizer) == [expected] * 2


@counting
def test_the_largest_count_of_each_group_is_shown_and_saved(kind, device):
    params, again = make_params(device), make_params(device)
    groups = [[{"params": some[:2]}, {"params": some[2:]}] for some in (params, again)]
    optimizer, resumed = (kind(each, **ALL[kind]) for each in groups)
    for step in range(4):
        set_grads(params, step)
        params[0].grad = None if step < 3 else params[0].grad
        params[2].grad = params[3].grad = None
        optimizer.step()
    assert counts_of(optimizer) == [1, 4] and shown(optimizer) == [4, 0]
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, value in zip(again, params):
        param.data.copy_(value)
    assert_equal(train(resumed, again, 1), train(optimizer, params, 1))
    assert counts_of(resumed) == [2, 5] and shown(resumed) == [5, 1]


@counting
def test_a_count_that_the_program_writes_counts(kind, device):
    """Phase two of BERT starts at zero again, with the moments of phase one."""
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["step"] = 0
    other, again = resumed_from(saved, params, kind, **ALL[kind])
    optimizer.param_groups[0]["step"] = 0
    assert {int(state["step"]) for state in optimizer.state_dict()["state"].values()} == {0}
    assert_equal(train(other, again, 2, first=3), train(optimizer, params, 2, first=3))
    assert shown(optimizer) == shown(other) == [2]
    assert counts_of(optimizer) == counts_of(other) == [2] * len(params)


def test_a_count_without_moments_is_that_of_zero_moments(device):
    params = make_params(device)
    optimizer = FusedAdam(params, 0.1)
    optimizer.param_groups[0]["step"] = 9
    before = [param.detach().clone() for param in params]
    train(optimizer, params, 1)
    share = (0.1 / (1 - 0.9**10)) / (0.001 / (1 - 0.999**10)) ** 0.5
    for param, value in zip(params, before):
        step = -0.1 * share * param.grad.sign()
        torch.testing.assert_close(param - value, step, rtol=1e-3, atol=1e-5)
    assert shown(optimizer) == [10]


def test_a_running_norm_starts_with_its_first_step(device):
    params, again = make_params(device), make_params(device)
    optimizer = FusedNovoGrad(params)
    optimizer.param_groups[0]["step"] = 9
    assert_equal(train(optimizer, params, 1), train(FusedNovoGrad(again), again, 1))


def test_counts_moved_by_data_are_saved_alike(device):
    params = make_params(device)
    optimizer = FusedAdam(params)
    train(optimizer, params, 2)
    for param in params:
        optimizer.state[param]["step"].data.fill_(7)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 7
    train(optimizer, params, 1)
    assert shown(optimizer) == [8]


@counting
def test_nothing_waits_for_the_count(kind):
    """A meta tensor has no value that could be read."""
    params = [nn.Parameter(torch.ones(3, device="meta")) for _ in range(2)]
    optimizer = kind([{"params": params[:1]}, {"params": params[1:]}], **ALL[kind])
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    for group in optimizer.param_groups:
        step = group["step"]
        assert step.device.type == "meta" and step.dtype == torch.int32 and step.shape == ()


def test_an_empty_group_has_no_count(device):
    optimizer = FusedAdam([{"params": make_params(device)}, {"params": []}])
    train(optimizer, optimizer.param_groups[0]["params"], 1)
    assert "step" not in optimizer.param_groups[1]

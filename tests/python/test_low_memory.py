"""Fused optimizers that keep masters and moments in fewer bytes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    backward,
    changed,
    initialized,
    overflow_at,
    own_masters,
    train_step,
)

import torchamp
from torchamp import amp, optimizers
from torchamp._load import _C

MAKERS = {
    "adamw": lambda model, **how: optimizers.FusedAdamW(model.parameters(), 0.01, eps=1e-4, **how),
    "sgd": lambda model, **how: optimizers.FusedSGD(model.parameters(), 0.1, 0.5, **how),
    "plain_sgd": lambda model, **how: optimizers.FusedSGD(model.parameters(), 0.1, **how),
    "adagrad": lambda model, **how: optimizers.FusedAdagrad(model.parameters(), **how),
    "novograd": lambda model, **how: optimizers.FusedNovoGrad(model.parameters(), **how),
}


def training(device, level, name="adamw", model=None, options=None, **how):
    net = copy.deepcopy(model or Net())
    make = lambda model: MAKERS[name](model, **how)  # noqa: E731
    return initialized(level, net, make, device, loss_scale="dynamic", **(options or {}))


def split_and_whole(device, level, name="adamw"):
    """The same training twice: with split masters, and with float32 masters without accesses."""
    net = Net()
    return training(device, level, name, net, split_masters=True), training(
        device, level, name, net
    )


def weights_of(optimizer):
    return optimizer._torchamp.weights


def master_values(model, optimizer):
    return [weights_of(optimizer).master_value(param) for param in model.parameters()]


def numbers(model, optimizer):
    """A copy of the masters' values and the model's."""
    found = [*master_values(model, optimizer), *model.parameters()]
    return {str(i): tensor.detach().clone() for i, tensor in enumerate(found)}


def states_of(optimizer):
    """Does not count as an access."""
    with optimizer._torchamp.accesses.suppress():
        return copy.deepcopy(optimizer.state_dict()["state"])


def assert_same(split, whole, at_most=3e-7):
    for left, right in zip(split[0].parameters(), whole[0].parameters()):
        torch.testing.assert_close(left, right)
    for left, right in zip(master_values(*split), master_values(*whole)):
        torch.testing.assert_close(left, right, rtol=at_most, atol=1e-11)


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("name", MAKERS)
def test_split_masters_are_worth_whole_ones(device, level, name):
    split, whole = split_and_whole(device, level, name)
    for step in range(8):
        for model, optimizer in (split, whole):
            train_step(model, optimizer, step)
    assert weights_of(split[1]).is_split and not weights_of(whole[1]).is_split
    assert_same(split, whole, 1e-5)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_split_masters_take_two_bytes(device, level):
    model, optimizer = training(device, level, split_masters=True)
    train_step(model, optimizer)
    with optimizer._torchamp.accesses.suppress():
        masters = own_masters(optimizer)
        assert masters and all(master.untyped_storage().nbytes() == 4 for master in masters)
        assert all(master.isnan().all() for master in masters)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_an_overflow_skips_with_split_masters(device, level):
    model, optimizer = training(device, level, split_masters=True)
    train_step(model, optimizer)
    before = numbers(model, optimizer)
    with overflow_at(model.first.weight):
        train_step(model, optimizer, 1)
    assert not changed(before, numbers(model, optimizer))
    assert weights_of(optimizer).is_split


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_micro_batches_with_split_masters(device, level):
    split, whole = split_and_whole(device, level)
    for step in range(3):
        for model, optimizer in (split, whole):
            optimizer.zero_grad()
            for micro_batch in range(2):
                backward(model, optimizer, 2 * step + micro_batch)
            amp.clip_grad_norm_(optimizer, 0.5)
            optimizer.step()
    assert weights_of(split[1]).is_split
    assert_same(split, whole, 1e-5)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_accesses_reconstruct_whole_masters(device, level):
    split, whole = split_and_whole(device, level)
    for model, optimizer in (split, whole):
        train_step(model, optimizer)
    found, expected = (list(amp.master_params(optimizer)) for _, optimizer in (split, whole))
    for left, right in zip(found, expected):
        torch.testing.assert_close(left, right, rtol=3e-7, atol=1e-11)
    assert not weights_of(split[1]).is_split
    for model, optimizer in (split, whole):
        train_step(model, optimizer, 1)
    assert_same(split, whole, 1e-5)


def params_of(optimizer):
    """The list itself, without a look at what is in it."""
    return optimizer.param_groups[0]["params"]


#: Ways to the masters past the methods of their list: torch's functions read lists in C.
READERS = {
    "norm": lambda optimizer: torch._foreach_norm(params_of(optimizer)),
    "by name": lambda optimizer: torch._foreach_abs(self=params_of(optimizer)),
    "two lists": lambda optimizer: torch._foreach_sub(params_of(optimizer), params_of(optimizer)),
    "torchamp's ops": lambda optimizer: [torchamp.ops.l2norm(params_of(optimizer))[0]],
    "keys of the state": lambda optimizer: [param.sum() for param in optimizer.state],
    "copy": lambda optimizer: torch._foreach_norm(params_of(copy.deepcopy(optimizer))),
}


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("way", READERS)
def test_torch_s_functions_find_whole_masters(device, level, way):
    split, whole = split_and_whole(device, level)
    for model, optimizer in (split, whole):
        train_step(model, optimizer)
    found, expected = (READERS[way](optimizer) for _, optimizer in (split, whole))
    for left, right in zip(found, expected):
        torch.testing.assert_close(left, right, rtol=3e-7, atol=1e-11)
    assert not weights_of(split[1]).is_split
    assert all(type(master) is torch.Tensor for master in own_masters(split[1]))


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_torch_s_functions_write_masters(device, level):
    split, whole = split_and_whole(device, level)
    for step in range(2):
        for model, optimizer in (split, whole):
            optimizer.zero_grad()
            backward(model, optimizer, step)
            with torch.no_grad():
                torch._foreach_mul_(params_of(optimizer), 0.5)
            optimizer.step()
    assert_same(split, whole, 1e-5)


@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("saved_split", [True, False])
def test_checkpoints_convert(device, level, saved_split):
    first = training(device, level, split_masters=saved_split)
    second = training(device, level, split_masters=not saved_split)
    for step in range(3):
        train_step(*first, step)
    with first[1]._torchamp.accesses.suppress():
        state = copy.deepcopy((first[0].state_dict(), first[1].state_dict()))
    assert all(t.dtype is torch.float32 for t in state[0].values() if t.is_floating_point())
    second[0].load_state_dict(state[0])
    second[1].load_state_dict(state[1])
    assert_same(first, second)
    for model, optimizer in (first, second):
        train_step(model, optimizer, 3)
    assert_same(first, second, 1e-5)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_the_model_is_adopted_when_written(device, level):
    model, optimizer = training(device, level, split_masters=True)
    train_step(model, optimizer)
    with torch.no_grad():
        model.first.weight.fill_(0.75)
    backward(model, optimizer, 1)
    assert weights_of(optimizer).master_value(model.first.weight).eq(0.75).all()


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_group_added_later_is_split_too(device, level):
    model, optimizer = training(device, level, split_masters=True)
    extra = torch.nn.Parameter(torch.randn(5).to(model.first.weight))
    optimizer.add_param_group({"params": [extra]})
    with amp.scale_loss(extra.float().square().sum() * 1e-3, optimizer) as scaled_loss:
        scaled_loss.backward()
    before = extra.detach().clone()
    optimizer.step()
    assert weights_of(optimizer).is_split and not torch.equal(extra, before)
    assert weights_of(optimizer).master_value(extra).to(extra.dtype).equal(extra.detach())


@pytest.mark.parametrize("level", [*MASTER_LEVELS, "O0", "O1"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "adagrad", "novograd"])
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
    with first[1]._torchamp.accesses.suppress():
        second[1].load_state_dict(first[1].state_dict())
    for left, right in zip(states_of(first[1]).values(), states_of(second[1]).values()):
        assert right["exp_avg"].dtype is dtypes[1]
        torch.testing.assert_close(
            right["exp_avg"].float(), left["exp_avg"].float(), rtol=0.01, atol=0
        )
    train_step(*second, 1)


def test_runs_repeat(device):
    def trained():
        torch.manual_seed(0)
        how = dict(state_dtype=torch.bfloat16, stochastic_rounding=True)
        model, optimizer = training(device, "O5", options={"master_weights": False}, **how)
        for step in range(4):
            train_step(model, optimizer, step)
        return {name: param.detach().clone() for name, param in model.named_parameters()}

    assert not changed(trained(), trained())


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
    optimizer = optimizers.FusedAdam([param], state_dtype=torch.bfloat16, split_masters=True)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert made.state_dtype is torch.bfloat16
        assert made.split_masters and not made.stochastic_rounding


def test_saved_memory_is_printed(heard):
    model = torch.nn.Linear(1024, 1024, bias=False)
    how = dict(state_dtype=torch.bfloat16, split_masters=True)
    optimizer = optimizers.FusedAdamW(model.parameters(), **how)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=1)
    said = heard.take()
    assert "INFO: split masters: 2.0 MiB saved" in said
    assert "INFO: optimizer state in bfloat16: 4.0 MiB saved" in said
    model = torch.nn.Linear(1024, 1024, bias=False)
    optimizer = optimizers.FusedSGD(model.parameters(), 0.1, stochastic_rounding=True)
    amp.initialize(model, optimizer, opt_level="O5", master_weights=False, verbosity=1)
    said = heard.take()
    assert "INFO: stochastic rounding in place of masters: 4.0 MiB saved" in said


def test_bad_choices():
    params = [torch.nn.Parameter(torch.randn(3))]
    with pytest.raises(ValueError, match="FusedAdam: expected state_dtype to be torch.float32 or"):
        optimizers.FusedAdam(params, state_dtype=torch.float16)
    for make in (optimizers.FusedLAMB, optimizers.FusedLARS):
        with pytest.raises(
            ValueError, match="expected split_masters=False, because its steps need"
        ):
            make(params, lr=0.1, split_masters=True)
    half = [torch.nn.Parameter(torch.randn(3).half())]
    half[0].grad = torch.ones_like(half[0])
    with pytest.raises(ValueError, match=r"expected params\[0\] to be bfloat16 or wider"):
        optimizers.FusedSGD(half, 0.1, stochastic_rounding=True).step()

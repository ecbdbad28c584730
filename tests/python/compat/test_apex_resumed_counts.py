"""Checkpoints of apex's optimizers: the count of a group, and those of its parameters."""

import copy

import pytest
import torch
from apex import amp
from apex.optimizers import FusedAdam
from compat.optimizers import (
    ALL,
    assert_equal,
    counting,
    counts_of,
    make_params,
    shown,
    train,
)
from nets import linear_net, train_step
from torch import nn

import torchamp


def moments_of(optimizer, params):
    return [
        {name: value.clone() for name, value in optimizer.state[param].items() if name != "step"}
        for param in params
    ]


def load_with_moments(optimizer, group, moments):
    state = {i: copy.deepcopy(each) for i, each in enumerate(moments)}
    optimizer.load_state_dict({"state": state, "param_groups": [group]})


def copy_moments_afterwards(optimizer, group, moments):
    empty = [{name: torch.zeros_like(value) for name, value in each.items()} for each in moments]
    load_with_moments(optimizer, group, empty)
    for param, each in zip(optimizer.param_groups[0]["params"], moments):
        for name, value in each.items():
            optimizer.state[param][name].copy_(value)


def assign_moments_afterwards(optimizer, group, moments):
    optimizer.load_state_dict({"state": {}, "param_groups": [group]})
    for param, each in zip(optimizer.param_groups[0]["params"], moments):
        for name, value in each.items():
            optimizer.state[param][name] = value


@counting
@pytest.mark.parametrize(
    "restore", [load_with_moments, copy_moments_afterwards, assign_moments_afterwards]
)
def test_a_resume_that_takes_moments_apart_from_the_count(kind, restore, device):
    """As Megatron-LM's distributed optimizer saves and loads."""
    params, again = make_params(device), make_params(device)
    optimizer, resumed = kind(params, **ALL[kind]), kind(again, **ALL[kind])
    train(optimizer, params, 5)
    group, moments = optimizer.state_dict()["param_groups"][0], moments_of(optimizer, params)
    for param, value in zip(again, params):
        param.data.copy_(value)
    restore(resumed, group, moments)
    assert shown(resumed) == [5]
    assert_equal(train(resumed, again, 3, first=5), train(optimizer, params, 3, first=5))
    assert shown(resumed) == [8] and counts_of(resumed) == [8] * len(params)


def without_the_counts(states):
    for state in states:
        del state["step"]


def without_one_count(states):
    del states[0]["step"]


def with_older_counts(states):
    for state in states:
        state["step"].zero_()


@counting
@pytest.mark.parametrize("change", [without_the_counts, without_one_count, with_older_counts])
def test_a_state_dict_that_was_only_loaded_has_one_count(kind, change, device):
    params = make_params(device)
    optimizer, other = kind(params, **ALL[kind]), kind(make_params(device), **ALL[kind])
    train(optimizer, params, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    change(list(saved["state"].values()))
    other.load_state_dict(saved)
    again = other.state_dict()
    assert again["param_groups"][0]["step"] == 2
    assert [int(state["step"]) for state in again["state"].values()] == [2] * len(params)


@counting
def test_moments_that_replace_one_parameters_state_have_the_groups_count(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 4)
    (moments,) = moments_of(optimizer, params[:1])
    optimizer.state[params[0]] = moments
    train(optimizer, params, 1)
    assert counts_of(optimizer) == [5] * len(params)


@counting
def test_a_dict_without_the_groups_count_does_not_keep_the_old_one(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["step"]
    train(optimizer, params, 5, first=2)
    optimizer.load_state_dict(saved)
    assert shown(optimizer) == [2]
    train(optimizer, params, 1)
    assert shown(optimizer) == [3] and counts_of(optimizer) == [3] * len(params)


@pytest.mark.parametrize("kind", [FusedAdam, torchamp.optimizers.FusedAdam])
def test_files_of_amp_save_have_their_own_count(kind, tmp_path):
    def trained(kind, steps):
        model = linear_net()
        optimizer = kind(model.parameters())
        amp.initialize(model, optimizer, opt_level="O2", loss_scale=1.0, verbosity=0)
        for _ in range(steps):
            train_step(model, optimizer)
        return model, optimizer

    torchamp.amp.save(*trained(kind, 2), tmp_path / "file")
    model, optimizer = trained(FusedAdam, 5)
    torchamp.amp.load(model, optimizer, tmp_path / "file")
    assert shown(optimizer) == [2] and counts_of(optimizer) == [2] * 4


class OwnCount(FusedAdam):
    """Counts in the group, as apex's own step does, and knows nothing else."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1


def test_the_count_of_a_subclass_is_saved_and_loaded(device):
    params = [nn.Parameter(torch.ones(3, device=device))]
    optimizer, resumed = OwnCount(params), OwnCount(params)
    for _ in range(3):
        optimizer.step()
    resumed.load_state_dict(optimizer.state_dict())
    resumed.step()
    assert resumed.state_dict()["param_groups"][0]["step"] == 4

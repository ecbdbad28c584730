"""State dicts of apex.optimizers, ours and apex's, and copies."""

import copy
import pickle

import pytest
import torch
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad
from compat.optimizers import ALL, assert_equal, every, make_params, resumed_from, train

import torchamp


@every
def test_resumed_ones_copies_and_pickles_step_alike(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 3)
    resumed, _ = resumed_from(optimizer.state_dict(), params, kind, **ALL[kind])
    others = [resumed, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    expected = train(optimizer, params, 3, first=3)
    for each in others:
        assert each.set_grad_none == optimizer.set_grad_none
        assert_equal(train(each, each.param_groups[0]["params"], 3, first=3), expected)


def apexs_state_dict(optimizer, **more):
    """`optimizer`'s state in apex's layout: steps by group, apex's names."""
    state_dict = copy.deepcopy(optimizer.state_dict())
    (group,) = state_dict["param_groups"]
    steps = {int(state.pop("step")) for state in state_dict["state"].values()}
    kept = {"params", "lr", "betas", "eps", "weight_decay", "bias_correction"}
    group = {name: value for name, value in group.items() if name in kept}
    state_dict["param_groups"] = [{**group, "step": steps.pop(), **more}]
    return state_dict


@pytest.mark.parametrize("kind", [FusedAdam, FusedLAMB], ids=lambda kind: kind.__name__)
def test_an_optimizer_dict_of_apexs_resumes(kind, device):
    params, options = make_params(device), {"weight_decay": 0.1, "adam_w_mode": False}
    optimizer = kind(params, **options)
    train(optimizer, params, 3)
    more = {"grad_averaging": 1, "max_grad_norm": 1.0} if kind is FusedLAMB else {}
    resumed, again = resumed_from(apexs_state_dict(optimizer, **more), params, kind, **options)
    assert_equal(train(resumed, again, 2, first=3), train(optimizer, params, 2, first=3))


def test_a_novograd_dict_of_apexs_resumes(device):
    """apex keeps the norms in the group, by dtype, and could not load them before a step."""
    params = make_params(device)
    params[1].data = params[1].data.half()
    optimizer = FusedNovoGrad(params)
    train(optimizer, params, 3)
    saved = apexs_state_dict(optimizer, grad_averaging=1)
    norms = [state.pop("norm_average") for state in saved["state"].values()]
    saved["param_groups"][0]["exp_avg_sq"] = [
        torch.stack(norms[1:2]),
        torch.stack(norms[:1] + norms[2:]),
    ]
    resumed, again = resumed_from(saved, params, FusedNovoGrad)
    assert_equal(train(resumed, again, 2, first=3), train(optimizer, params, 2, first=3))


NAMES = {
    FusedLAMB: {"grad_averaging": "averages_grads"},
    FusedNovoGrad: {"grad_averaging": "averages_grads", "init_zero": "starts_at_zero"},
}
named = pytest.mark.parametrize(
    ("kind", "theirs", "ours"),
    [(kind, *pair) for kind, names in NAMES.items() for pair in names.items()],
)


@named
def test_groups_have_apexs_names(kind, theirs, ours, device):
    params = make_params(device)
    groups = [{"params": params[:1], theirs: True}, {"params": params[1:2], theirs: False}]
    optimizer = kind([*groups, {"params": params[2:]}], **{theirs: False})
    assert [group[theirs] for group in optimizer.param_groups] == [True, False, False]
    assert [group[ours] for group in optimizer.param_groups] == [True, False, False]


@named
@pytest.mark.parametrize("value", [0, 1])
def test_what_a_program_writes_under_apexs_name_counts(kind, theirs, ours, value, device):
    params, twins, again = (make_params(device) for _ in range(3))
    optimizer, expected = kind(params, **{theirs: not value}), kind(twins, **{theirs: value})
    optimizer.param_groups[0][theirs] = value
    assert_equal(train(optimizer, params, 3), train(expected, twins, 3))
    other = kind(again, **{theirs: not value})
    other.param_groups[0][theirs] = value
    plain = getattr(torchamp.optimizers, kind.__name__)(make_params(device))
    plain.load_state_dict(other.state_dict())
    assert plain.param_groups[0][ours] == value


@named
@pytest.mark.parametrize("kept", ["both", "theirs", "ours"])
def test_state_dicts_with_either_name_load(kind, theirs, ours, kept, device):
    saved = kind(make_params(device), **{theirs: False}).state_dict()
    (group,) = saved["param_groups"]
    for name in {"both": (), "theirs": (ours,), "ours": (theirs,)}[kept]:
        del group[name]
    optimizer = kind(make_params(device), **{theirs: True})
    optimizer.load_state_dict(saved)
    assert not optimizer.param_groups[0][theirs] and not optimizer.param_groups[0][ours]


def test_other_norms_are_refused_wherever_they_come_from(device):
    params = make_params(device)
    optimizer = FusedNovoGrad(params[:2])
    assert optimizer.param_groups[0]["norm_type"] == 2
    refused = "FusedNovoGrad: expected norm_type to be 2, the only norm it has, got 0"
    with pytest.raises(RuntimeError, match=refused):
        optimizer.add_param_group({"params": params[2:], "norm_type": 0})
    saved = optimizer.state_dict()
    saved["param_groups"][0]["norm_type"] = 0
    with pytest.raises(RuntimeError, match=refused):
        optimizer.load_state_dict(saved)
    assert len(optimizer.param_groups) == 1 and optimizer.param_groups[0]["norm_type"] == 2

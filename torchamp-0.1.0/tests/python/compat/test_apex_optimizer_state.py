"""State dicts of apex.optimizers, ours and apex's, and copies."""

import copy
import pickle

import pytest
import torch
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad
from apex_optimizers import ALL, assert_equal, every, make_params, train


@every
def test_state_dicts_resume_bit_for_bit(kind, device):
    params, again = make_params(device), make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 3)
    resumed = kind(again, **ALL[kind])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, saved in zip(again, params):
        param.data.copy_(saved)
    assert_equal(train(resumed, again, 3, first=3), train(optimizer, params, 3, first=3))


@every
def test_copies_and_pickles_step_alike(kind, device):
    params = make_params(device)
    optimizer = kind(params, **ALL[kind])
    train(optimizer, params, 2)
    twin = copy.deepcopy(optimizer)
    other = pickle.loads(pickle.dumps(optimizer))
    expected = train(optimizer, params, 2, first=2)
    for each in (twin, other):
        assert each.set_grad_none == optimizer.set_grad_none
        assert_equal(train(each, each.param_groups[0]["params"], 2, first=2), expected)


def test_loading_keeps_moments_in_float32(device):
    """apex's FusedAdam cast them to the parameters' dtype."""
    params, again = make_params(device, torch.float16), make_params(device, torch.float16)
    optimizer = FusedAdam(params)
    train(optimizer, params, 2)
    resumed = FusedAdam(again)
    resumed.load_state_dict(optimizer.state_dict())
    for param, other in zip(params, again):
        for name in ("exp_avg", "exp_avg_sq"):
            assert resumed.state[other][name].dtype == torch.float32
            assert torch.equal(resumed.state[other][name], optimizer.state[param][name])


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
    params, again = make_params(device), make_params(device)
    optimizer = kind(params, weight_decay=0.1, adam_w_mode=False)
    train(optimizer, params, 3)
    more = {"grad_averaging": 1, "max_grad_norm": 1.0} if kind is FusedLAMB else {}
    resumed = kind(again, weight_decay=0.1, adam_w_mode=False)
    resumed.load_state_dict(apexs_state_dict(optimizer, **more))
    for param, saved in zip(again, params):
        param.data.copy_(saved)
    assert_equal(train(resumed, again, 2, first=3), train(optimizer, params, 2, first=3))


def test_a_novograd_dict_of_apexs_resumes(device):
    """apex keeps the norms in the group, by dtype, and could not load them before a step."""
    params, again = make_params(device), make_params(device)
    for some in (params, again):
        some[1].data = some[1].data.half()
    optimizer = FusedNovoGrad(params)
    train(optimizer, params, 3)
    saved = apexs_state_dict(optimizer, grad_averaging=1)
    norms = [state.pop("norm_average") for state in saved["state"].values()]
    saved["param_groups"][0]["exp_avg_sq"] = [
        torch.stack(norms[1:2]),
        torch.stack(norms[:1] + norms[2:]),
    ]
    resumed = FusedNovoGrad(again)
    resumed.load_state_dict(saved)
    for param, value in zip(again, params):
        param.data.copy_(value)
    assert_equal(train(resumed, again, 2, first=3), train(optimizer, params, 2, first=3))


def test_apexs_names_in_groups_are_understood(device):
    params = make_params(device)
    groups = [
        {"params": params[:2], "grad_averaging": False},
        {"params": params[2:], "weight_decay": 0.0},
    ]
    optimizer = FusedLAMB(groups)
    plain = [group["averages_grads"] for group in optimizer.param_groups]
    assert plain == [False, True]

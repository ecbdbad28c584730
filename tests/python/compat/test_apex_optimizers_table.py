"""apex's optimizers by what programs see of them, and where ours differ, each with the reason."""

import inspect

import apex.optimizers
import pytest
import torch
from apex_optimizers import ALL, make_params, train
from torch.optim.optimizer import required

ADAM = dict(lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8)

#: The constructor's arguments with their defaults.
ARGUMENTS = {
    "FusedAdam": dict(
        **ADAM,
        adam_w_mode=True,
        weight_decay=0.0,
        amsgrad=False,
        set_grad_none=True,
        capturable=False,
        master_weights=False,
    ),
    "FusedLAMB": dict(
        **{**ADAM, "eps": 1e-6},
        weight_decay=0.01,
        amsgrad=False,
        adam_w_mode=True,
        grad_averaging=True,
        set_grad_none=True,
        max_grad_norm=1.0,
        use_nvlamb=False,
    ),
    "FusedNovoGrad": dict(
        **ADAM,
        weight_decay=0.0,
        amsgrad=False,
        reg_inside_moment=False,
        grad_averaging=True,
        norm_type=2,
        init_zero=False,
        set_grad_none=True,
    ),
    "FusedAdagrad": dict(
        lr=1e-2, eps=1e-10, weight_decay=0.0, set_grad_none=True, adagrad_w_mode=False
    ),
    "FusedSGD": dict(
        lr=required,
        momentum=0.0,
        dampening=0.0,
        weight_decay=0.0,
        nesterov=False,
        wd_after_momentum=False,
        materialize_master_grads=True,
        set_grad_none=False,
    ),
}

#: The arguments of step.
STEPS = {
    "FusedAdam": ["closure", "grads", "output_params", "scale", "grad_norms", "grad_scaler"],
    "FusedLAMB": ["closure"],
    "FusedNovoGrad": ["closure"],
    "FusedAdagrad": ["closure"],
    "FusedSGD": ["closure"],
}

#: An attribute's value where that is any function.
FUNCTION = object()
BUFFER = {"_dummy_overflow_buf": [0]}

#: The attributes of an instance made with the defaults.
ATTRIBUTES = {
    "FusedAdam": dict(
        **BUFFER,
        multi_tensor_adam=FUNCTION,
        multi_tensor_adam_capturable=FUNCTION,
        multi_tensor_adam_capturable_master=FUNCTION,
        adam_w_mode=1,
        set_grad_none=True,
        capturable=False,
        master_weights=False,
        param_groups_master=None,
    ),
    "FusedLAMB": dict(
        **BUFFER,
        multi_tensor_l2norm=FUNCTION,
        multi_tensor_lamb=FUNCTION,
        adam_w_mode=1,
        set_grad_none=True,
        use_nvlamb=False,
    ),
    "FusedNovoGrad": dict(
        **BUFFER, multi_tensor_novograd=FUNCTION, moment_mode=1, set_grad_none=True
    ),
    "FusedAdagrad": dict(
        **BUFFER, multi_tensor_adagrad=FUNCTION, adagrad_w_mode=0, set_grad_none=True
    ),
    "FusedSGD": dict(
        **BUFFER,
        multi_tensor_sgd=FUNCTION,
        get_momentums=FUNCTION,
        wd_after_momentum=False,
        materialize_master_grads=True,
        most_recent_scale=1.0,
        scale_set_by_backward=False,
        set_grad_none=False,
    ),
}

COMMON = ["params", "lr", "eps", "weight_decay"]

#: The keys of a group after a step.
GROUPS = {
    "FusedAdam": [*COMMON, "betas", "bias_correction", "step"],
    "FusedLAMB": [*COMMON, "betas", "bias_correction", "grad_averaging", "max_grad_norm", "step"],
    "FusedNovoGrad": [
        *(*COMMON, "betas", "bias_correction", "grad_averaging", "step"),
        *("norm_type", "init_zero", "exp_avg_sq"),
    ],
    "FusedAdagrad": COMMON,
    "FusedSGD": ["params", "lr", "momentum", "dampening", "weight_decay", "nesterov"],
}

#: The keys of a parameter's state after a step.
STATES = {
    "FusedAdam": ["exp_avg", "exp_avg_sq"],
    "FusedLAMB": ["exp_avg", "exp_avg_sq"],
    "FusedNovoGrad": ["exp_avg"],
    "FusedAdagrad": ["sum"],
    "FusedSGD": ["momentum_buffer"],
}

#: What ours lack, and why.
LACKING = {
    ("FusedAdam", "attribute", "multi_tensor_adam_capturable"): "amp_C has not that function",
    ("FusedAdam", "attribute", "multi_tensor_adam_capturable_master"): "as the one above",
    ("FusedAdam", "step", "grad_scaler"): "GradScalers hand over by attributes; TypeError",
    ("FusedAdam", "attribute", "param_groups_master"): "masters are those of amp.initialize",
    ("FusedNovoGrad", "group", "exp_avg_sq"): "the norms are in state, by parameter",
}

every = pytest.mark.parametrize("name", ARGUMENTS)


def kind_of(name):
    return getattr(apex.optimizers, name)


def stepped(name, device):
    params = make_params(device)
    optimizer = kind_of(name)(params, **ALL[kind_of(name)])
    train(optimizer, params, 1)
    return optimizer, params


def assert_has(name, what, expected, got):
    """All of it but what is known to be lacking, which it must be."""
    known = {key for kind, place, key in LACKING if (kind, place) == (name, what)}
    assert set(expected) - set(got) == known


def test_the_table_has_every_optimizer():
    tables = (STEPS, ATTRIBUTES, GROUPS, STATES)
    assert set(ARGUMENTS) == set(apex.optimizers.__all__)
    assert all(set(table) == set(ARGUMENTS) for table in tables)


@every
def test_arguments_and_defaults(name):
    parameters = list(inspect.signature(kind_of(name).__init__).parameters.values())[2:]
    assert {p.name: p.default for p in parameters} == ARGUMENTS[name]
    assert [p.name for p in parameters] == list(ARGUMENTS[name])


@every
def test_arguments_of_step(name):
    parameters = list(inspect.signature(kind_of(name).step).parameters)[1:]
    assert_has(name, "step", STEPS[name], parameters)
    assert parameters == STEPS[name][: len(parameters)]


@every
def test_bases(name):
    kind = kind_of(name)
    assert not any(issubclass(kind, kind_of(other)) for other in ARGUMENTS if other != name)
    assert issubclass(kind, torch.optim.Optimizer)
    theirs = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    assert not any(issubclass(kind, each) for each in theirs if each is not torch.optim.Optimizer)


@every
def test_attributes(name, device):
    optimizer = kind_of(name)(make_params(device), **{**ALL[kind_of(name)], "lr": 0.1})
    expected = ATTRIBUTES[name]
    got = {key: getattr(optimizer, key) for key in expected if hasattr(optimizer, key)}
    assert_has(name, "attribute", expected, got)
    for key, value in got.items():
        if expected[key] is FUNCTION:
            assert callable(value)
        elif isinstance(value, torch.Tensor):
            assert value.dtype == torch.int32 and value.tolist() == expected[key]
        else:
            assert value == expected[key] and type(value) is type(expected[key])


@every
def test_keys_of_groups(name, device):
    optimizer, _ = stepped(name, device)
    (group,) = optimizer.param_groups
    assert_has(name, "group", GROUPS[name], group)
    assert_has(name, "group", GROUPS[name], optimizer.state_dict()["param_groups"][0])


@every
def test_keys_of_states(name, device):
    optimizer, params = stepped(name, device)
    for param in params:
        assert_has(name, "state", STATES[name], optimizer.state[param])


@every
def test_zero_grad_needs_no_argument(name, device):
    optimizer, params = stepped(name, device)
    optimizer.zero_grad()
    assert not any(param.grad is not None and param.grad.any() for param in params)

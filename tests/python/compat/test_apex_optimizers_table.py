"""apex's optimizers by what programs see of them, and where ours differ, each with the reason."""

import inspect

import apex.optimizers
import pytest
import torch
from compat.optimizers import ALL, make_params, train
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
    "FusedSGD": ["closure"],
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
    "FusedSGD": ["params", "lr", "momentum", "dampening", "weight_decay", "nesterov"],
}

#: The keys of a parameter's state after a step.
STATES = {
    "FusedAdam": ["exp_avg", "exp_avg_sq"],
    "FusedLAMB": ["exp_avg", "exp_avg_sq"],
    "FusedNovoGrad": ["exp_avg"],
    "FusedSGD": ["momentum_buffer"],
}

#: What ours lack, and why.
LACKING = {
    **dict.fromkeys(
        [
            ("FusedAdam", "step", name)
            for name in ("grads", "output_params", "scale", "grad_norms", "grad_scaler")
        ],
        "given up by apex, or handed over as attributes; TypeError",
    ),
    ("FusedNovoGrad", "group", "exp_avg_sq"): "the norms are in state, by parameter",
}

every = pytest.mark.parametrize("name", ARGUMENTS)


def kind_of(name):
    return getattr(apex.optimizers, name)


def assert_has(name, what, expected, got):
    """All of it but what is known to be lacking, which it must be."""
    known = {key for kind, place, key in LACKING if (kind, place) == (name, what)}
    assert set(expected) - set(got) == known


def test_the_table_has_every_optimizer():
    tables = (STEPS, GROUPS, STATES)
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
def test_keys_of_groups_and_states(name, device):
    params = make_params(device)
    optimizer = kind_of(name)(params, **ALL[kind_of(name)])
    train(optimizer, params, 1)
    (group,) = optimizer.param_groups
    assert_has(name, "group", GROUPS[name], group)
    assert_has(name, "group", GROUPS[name], optimizer.state_dict()["param_groups"][0])
    for param in params:
        assert_has(name, "state", STATES[name], optimizer.state[param])

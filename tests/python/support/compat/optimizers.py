"""All of apex's optimizers, and how the tests train with them."""

import copy

import pytest
import torch
from apex import amp
from apex.optimizers import FusedAdam, FusedLAMB, FusedNovoGrad, FusedSGD
from nets import linear_net, sgd
from torch import nn

ALL = {
    FusedAdam: {},
    FusedSGD: {"lr": 0.1, "momentum": 0.9},
    FusedLAMB: {},
    FusedNovoGrad: {},
}
SIZES = [(3,), (17, 5), (), (4, 3, 2, 2)]
every = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)

#: Those that keep their count in the group.
COUNTING = [FusedAdam, FusedLAMB, FusedNovoGrad]
counting = pytest.mark.parametrize("kind", COUNTING, ids=lambda kind: kind.__name__)


def initialized(level="O2", make=sgd, **options):
    """A model and its optimizer, by apex's initialize."""
    model = linear_net()
    return amp.initialize(model, make(model), opt_level=level, **{"verbosity": 0, **options})


def counts_of(optimizer):
    """Those of the first group's parameters."""
    return [int(optimizer.state[p]["step"]) for p in optimizer.param_groups[0]["params"]]


def shown(optimizer):
    """The groups' counts."""
    return [int(group["step"]) for group in optimizer.param_groups]


def make_params(device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    return [
        nn.Parameter(torch.randn(size, generator=generator).to(device, dtype)) for size in SIZES
    ]


def set_grads(params, step, scale=1.0):
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator) * scale
        param.grad = grad.to(param.device, param.dtype)


def train(optimizer, params, steps, first=0):
    for step in range(first, first + steps):
        set_grads(params, step)
        optimizer.step()
    return [param.detach().clone() for param in params]


def resumed_from(saved, params, kind, **options):
    """An optimizer that has loaded the state dict, and its parameters, copies of `params`."""
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    optimizer = kind(copies, **options)
    optimizer.load_state_dict(copy.deepcopy(saved))
    return optimizer, copies


def assert_equal(got, expected):
    assert len(got) == len(expected) and all(map(torch.equal, got, expected))

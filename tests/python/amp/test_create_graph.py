"""Backwards with create_graph, as of AdaHessian: grads that are unscaled lose their graph, which is
told."""

import warnings

import pytest
import torch
from nets import LEVELS, initialized, warned
from torch import nn

from torchamp import amp

MESSAGE = (
    "scale_loss: expected a backward without create_graph, got one with it, whose graph the grads "
    "lose as they are unscaled; differentiate what torch.autograd.grad(loss, params, "
    "create_graph=True) gives of the loss itself, or train at O0 or O4, which keep the graph"
)


def make(level):
    torch.manual_seed(0)
    return initialized(level, nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))


def loss_of(model):
    return model(torch.ones(2, 4)).float().square().mean()


def second_derivatives(grads, params):
    return torch.autograd.grad([grad.float().sum() for grad in grads], params)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("level", LEVELS)
def test_it_is_told_where_the_graph_is_lost(level):
    model, optimizer = make(level)
    params = list(model.parameters())
    with warned() as told:
        warnings.filterwarnings("ignore", "Using backward")
        with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
            scaled_loss.backward(create_graph=True)
    if level in ("O0", "O3", "O4"):
        assert told == []
        second_derivatives([param.grad for param in params], params)
    else:
        assert told == [MESSAGE] and not any(param.grad.requires_grad for param in params)
    optimizer.zero_grad()


@pytest.mark.parametrize("level", LEVELS)
def test_its_remedy(level):
    model, optimizer = make(level)
    params = list(model.parameters())
    loss = loss_of(model)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    found = second_derivatives(grads, params)
    plain, _ = make("O0")
    weights = list(plain.parameters())
    exact = second_derivatives(
        torch.autograd.grad(loss_of(plain), weights, create_graph=True), weights
    )
    for one, other in zip(found, exact):
        assert torch.allclose(one.float(), other, rtol=0.1, atol=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amp.scale_loss(loss_of(model), optimizer).backward()

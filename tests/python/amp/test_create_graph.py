"""What is told of torch.autograd's own calls: backwards with create_graph, as of AdaHessian, whose
grads lose their graph, and grads of torch.autograd.grad that nothing unscales."""

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


ASSIGNED = (
    "step: expected grads of a backward in scale_loss, got grads that came after a scale_loss "
    "without one, and are not unscaled; assign those of the scaled loss in its scope, or assign "
    "those that torch.autograd.grad gives of the loss itself"
)


def after_a_step(level, how, **options):
    """The parameters, in float32, and what was told."""
    torch.manual_seed(0)
    model, optimizer = initialized(level, nn.Linear(4, 2), **options)
    params, grads = list(model.parameters()), []
    loss = loss_of(model)
    with warned() as told:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            if how == "backward":
                scaled_loss.backward()
            else:
                grads = torch.autograd.grad(loss if how == "loss" else scaled_loss, params)
            if how == "inside":
                for param, grad in zip(params, grads):
                    param.grad = grad
        if how in ("after", "loss"):
            for param, grad in zip(params, grads):
                param.grad = grad
        optimizer.step()
    return [param.detach().clone() for param in amp.master_params(optimizer)], told


@pytest.mark.parametrize("level", LEVELS)
def test_scaled_grads_that_come_after_the_scope_are_told(level):
    expected, told = after_a_step(level, "backward", loss_scale=64.0)
    assert told == []
    inside, told = after_a_step(level, "inside", loss_scale=64.0)
    assert told == [] and all(map(torch.equal, inside, expected))
    of_the_loss, told = after_a_step(level, "loss", loss_scale=64.0)
    assert told == [ASSIGNED] and all(map(torch.equal, of_the_loss, expected))
    after, told = after_a_step(level, "after", loss_scale=64.0)
    assert told == [ASSIGNED] and not any(map(torch.equal, after, expected))
    assert after_a_step(level, "after", loss_scale=1.0)[1] == []

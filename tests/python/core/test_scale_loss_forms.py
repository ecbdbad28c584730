"""Other uses of scale_loss than one backward, and programs without it."""

import copy

import pytest
import torch
from nets import LEVELS, backward, batch, changed, everything, initialized, linear_net, loss_of

from torchamp import amp

SCALED = {"loss_scale": 256.0}


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_backward_in_one_call(level, enabled):
    after = []
    for in_one_call in (True, False):
        torch.manual_seed(0)
        model, optimizer = initialized(level, linear_net(), enabled=enabled)
        loss = loss_of(model)
        if in_one_call:
            amp.scale_loss(loss, optimizer).backward(retain_graph=True)
        else:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward(retain_graph=True)
        assert torch.autograd.grad(loss, list(model.parameters()))[0].isfinite().all()
        optimizer.step()
        after.append(everything(model, optimizer))
    assert not changed(*after)


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_of_the_input_is_scaled(level):
    model, optimizer = initialized(level, linear_net(), **SCALED)
    x = batch()[0].requires_grad_()
    model(x).float().sum().backward()
    true, x.grad = x.grad, None
    optimizer.zero_grad()
    with amp.scale_loss(model(x).float().sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.testing.assert_close(x.grad, 256 * true, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("level", LEVELS)
def test_autograd_grad_instead_of_backward(level):
    model, optimizer = initialized(level, linear_net(), **SCALED)
    x = batch()[0].requires_grad_()
    with amp.scale_loss(model(x).float().sum(), optimizer) as scaled_loss:
        (grad,) = torch.autograd.grad(scaled_loss, x)
    (true,) = torch.autograd.grad(model(x).float().sum(), x)
    torch.testing.assert_close(grad, 256 * true, rtol=1e-2, atol=1e-2)
    assert all(param.grad is None for param in amp.master_params(optimizer))


@pytest.mark.parametrize("level", LEVELS)
def test_a_penalty_on_the_gradient(level):
    """The second derivative reaches the masters, unscaled."""
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model, optimizer = initialized(level, copy.deepcopy(other), **SCALED)

    def penalty(net):
        x = batch()[0].requires_grad_()
        (grad,) = torch.autograd.grad(net(x).float().sum(), x, create_graph=True)
        return (grad.float().norm(dim=1) - 1).square().mean()

    with amp.scale_loss(penalty(model), optimizer) as scaled_loss:
        scaled_loss.backward()
    with amp.disable_casts():
        penalty(other).backward()
    for master, param in zip(amp.master_params(optimizer), other.parameters()):
        if param.grad is not None:
            torch.testing.assert_close(master.grad.float(), param.grad, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_grads_edited_inside_are_what_is_unscaled(level):
    model, optimizer = initialized(level, linear_net(), **SCALED)
    with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
        for param in model.parameters():
            param.grad.fill_(512.0)
    assert all((param.grad == 2).all() for param in amp.master_params(optimizer))


@pytest.mark.parametrize("level", LEVELS)
def test_backward_with_the_arguments_of_torch_s(level):
    model, optimizer = initialized(level, linear_net(), **SCALED)
    with amp.scale_loss(loss_of(model), [optimizer], 0) as scaled_loss:
        scaled_loss.backward(retain_graph=True)
        scaled_loss.backward(torch.ones(()), inputs=list(model.parameters()))
    twice = [param.grad.clone() for param in amp.master_params(optimizer)]
    optimizer.zero_grad()
    backward(model, optimizer)
    for grad, param in zip(twice, amp.master_params(optimizer)):
        torch.testing.assert_close(grad, 2 * param.grad, rtol=1e-2, atol=1e-4)

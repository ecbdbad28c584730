"""Stages 4 to 6 around a backward: the scaled loss, the grads, and the order."""

import pytest
import torch
from nets import (
    LEVELS,
    Net,
    backward,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
    sgd,
)

from torchamp import amp


def grads(optimizer) -> list[torch.Tensor]:
    return [p.grad.clone() for p in amp.master_params(optimizer)]


def scaler_of(optimizer, loss_id: int = 0):
    return optimizer._torchamp.session.scalers[loss_id]


@pytest.mark.parametrize("level", LEVELS)
def test_yields_float32(level):
    _, optimizer = initialized(level, loss_scale=256.0)
    for loss in (torch.ones((), requires_grad=True), torch.ones(3, requires_grad=True).half()):
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            assert scaled_loss.dtype == torch.float32 and scaled_loss.shape == loss.shape
            assert (scaled_loss == 256).all()


@pytest.mark.parametrize("level", ["O0", "O3", "O4"])
def test_without_scale_and_masters_grads_are_left_to_autograd(level):
    model, optimizer = initialized(level)
    loss_of(model).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    model.first.weight.grad = earlier = torch.ones_like(model.first.weight)
    backward(model, optimizer)
    assert model.first.weight.grad is earlier
    assert torch.equal(earlier - 1, (expected[0] + 1) - 1)


def test_the_models_grads_are_the_masters():
    model, optimizer = initialized("O2", linear_net(), loss_scale=128.0)
    backward(model, optimizer)
    for param, master in zip(model.parameters(), amp.master_params(optimizer)):
        assert param.grad.dtype == torch.float32 and param.grad is master.grad


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_grads_from_before_a_parameter_was_added_are_not_stepped(level):
    model = linear_net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0)
    backward(model, optimizer)
    before = [param.detach().clone() for param in model[2].parameters()]
    optimizer.add_param_group({"params": model[2].parameters()})
    optimizer.step()
    assert all(map(torch.equal, model[2].parameters(), before))


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_an_exception_leaves_grads_and_scaler_as_before(level):
    model, optimizer = initialized(level, loss_scale="dynamic")
    backward(model, optimizer)
    tensors = [*model.parameters(), *amp.master_params(optimizer)]
    before = [(t.grad, t.grad.clone()) for t in tensors]
    state = scaler_of(optimizer).state()
    with pytest.raises(KeyError), amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
        scaled_loss.backward()
        raise KeyError
    for tensor, (grad, value) in zip(tensors, before):
        assert tensor.grad is grad and torch.equal(grad, value)
    assert scaler_of(optimizer).state() == state
    optimizer.step()
    assert not torch.is_autocast_enabled("cpu") or level == "O1"


def test_grads_are_unscaled_by_the_scale_before_another_loss_changed_it():
    models = [linear_net(), linear_net()]
    optimizers = [sgd(model) for model in models]
    amp.initialize(models, optimizers, opt_level="O2", verbosity=0)
    with amp.scale_loss(loss_of(models[0]), optimizers[0]) as scaled_loss:
        with overflow_at(models[1][0].weight):
            backward(models[1], optimizers[1])
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2.0**15
        scaled_loss.backward()
    first = grads(optimizers[0])[0]
    optimizers[0].zero_grad()
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 0}})
    backward(models[0], optimizers[0])
    assert torch.equal(grads(optimizers[0])[0], first)


def test_grads_that_another_optimizer_has_delayed_are_unscaled_by_their_own_scale():
    model = linear_net()
    loss_of(model).backward()
    expected = [2 * param.grad for param in model.parameters()]
    both = [sgd(model), sgd(model)]
    options = {"opt_level": "O0", "loss_scale": "dynamic", "num_losses": 2, "verbosity": 0}
    amp.initialize(model, both, **options)
    with overflow_at(model[0].weight):
        backward(model, both[0], loss_id=0)  # whose scale is halved
    both[0].zero_grad()
    backward(model, both[0], loss_id=0, delay_unscale=True)
    backward(model, both[1], loss_id=1)
    for param, grad in zip(model.parameters(), expected):
        torch.testing.assert_close(param.grad, grad)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O5"])
def test_parameters_that_take_no_part_have_no_grads(level):
    model, optimizer = initialized(level, Net(), loss_scale="dynamic")
    loss = model.first(torch.ones(2, 4, dtype=model.first.weight.dtype)).float().sum() / 64
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    assert [p.grad is None for p in amp.master_params(optimizer)] == [False] * 2 + [True] * 4
    optimizer.step()


@pytest.mark.parametrize("kind", [tuple, list, iter])
def test_any_iterable_of_optimizers(kind):
    models = [linear_net(), linear_net()]
    optimizers = [sgd(model) for model in models]
    amp.initialize(models, optimizers, opt_level="O2", verbosity=0)
    loss = loss_of(models[0]) + loss_of(models[1])
    with amp.scale_loss(loss, kind(optimizers)) as scaled_loss:
        scaled_loss.backward()
    assert all(p.grad is not None for o in optimizers for p in amp.master_params(o))

"""The optimizer that initialize returns is the same object and behaves like torch's."""

import warnings

import pytest
import torch
from nets import (
    Net,
    backward,
    fused_adam,
    initialized,
    linear_net,
    overflow_at,
    sgd,
    train_step,
)

from torchamp import amp

LEVELS = ["O0", "O1", "O2"]


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_the_same_object_of_the_same_class(level):
    model = Net()
    optimizer = sgd(model)
    returned = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    assert returned[0] is model and returned[1] is optimizer
    assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    assert optimizer.step.hooked and "step" not in optimizer.__dict__


@pytest.mark.parametrize("arguments", [{}, {"set_to_none": True}, {"set_to_none": False}])
@pytest.mark.parametrize("positional", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_zero_grad(level, arguments, positional):
    model, optimizer = initialized(level)
    backward(model, optimizer)
    if positional:
        optimizer.zero_grad(*arguments.values())
    else:
        optimizer.zero_grad(**arguments)
    for tensor in (*model.parameters(), *amp.master_params(optimizer)):
        if arguments.get("set_to_none", True):
            assert tensor.grad is None
        else:
            assert torch.equal(tensor.grad, torch.zeros_like(tensor))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_act_and_do_not_warn(level, when):
    model = linear_net()
    optimizer = sgd(model)
    make = lambda: torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = make() if when == "before" else None
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale="dynamic")
        scheduler = scheduler or make()
        with overflow_at(model[0].weight):
            backward(model, optimizer)
        optimizer.step()
        scheduler.step()
        train_step(model, optimizer)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125 / 4


def test_a_scheduler_that_steps_first_still_warns():
    model, optimizer = initialized("O2")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        scheduler.step()


@pytest.mark.parametrize("make", [sgd, fused_adam])
def test_step_hooks_run_once_also_when_skipped(make):
    calls = []
    model, optimizer = initialized("O2", optimizer=make)
    optimizer.register_step_pre_hook(lambda *args: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *args: calls.append("post"))
    train_step(model, optimizer)
    assert calls == ["pre", "post"]
    with overflow_at(model.last.bias):
        train_step(model, optimizer)
    assert calls == ["pre", "post"] * 2


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda m: [m[2].weight], TypeError, "param_group must be a dict"),
        (lambda m: {"params": {m[2].weight}}, TypeError, "ordered collections"),
        (lambda m: {"params": ["text"]}, TypeError, "can only optimize Tensors"),
        (lambda m: {"params": [m[2].weight, m[0].weight]}, ValueError, "more than one"),
    ],
)
def test_add_param_group_refuses(make, error, message):
    model = linear_net()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    group = make(model)
    with pytest.raises(error, match=message):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    train_step(model, optimizer)

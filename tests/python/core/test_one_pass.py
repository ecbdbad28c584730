"""Masters stepped by grads that stay scaled in the model, with materialize_master_grads=False: what
makes them unscaled, and what does not."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    backward,
    batch,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
)

from torchamp import amp, optimizers


def fused_adamw(model):
    return optimizers.FusedAdamW(model.parameters(), 0.01, eps=1e-4)


def fused_sgd(model):
    return optimizers.FusedSGD(model.parameters(), 0.1, 0.5)


def lazy_training(model=Net, **options):
    return initialized("O2", model(), fused_adamw, materialize_master_grads=False, **options)


def shows_scaled_grads(model) -> bool:
    return any(p.dtype.itemsize == 2 and p.grad.dtype == p.dtype for p in model.parameters())


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no grad_dtype")
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_grads_that_add_up_in_float32(level):
    """Grads of one scale: a 16-bit sum loses what float32 keeps."""

    def gradient_of(dtype):
        weight = torch.nn.Parameter(torch.ones(1))
        model = torch.nn.Module()
        model.weight = weight
        made = lambda model: optimizers.FusedSGD(model.parameters(), 1.0)  # noqa: E731
        model, optimizer = initialized(level, model, made, loss_scale=1.0)
        weight.grad_dtype = dtype
        for micro_batch in range(3):
            loss = (model.weight.float() * (2.0**12 if micro_batch == 0 else 0.75)).sum()
            amp.scale_loss(loss, optimizer, delay_unscale=micro_batch < 2).backward()
        return next(amp.master_params(optimizer)).grad.item()

    assert gradient_of(torch.float32) == 2.0**12 + 1.5
    assert gradient_of(None) != 2.0**12 + 1.5


def test_a_look_at_the_masters_unscales_from_then_on():
    model, optimizer = lazy_training(loss_scale=64.0)
    masters: list[torch.Tensor] = []
    for step in range(2):
        optimizer.zero_grad()
        backward(model, optimizer, step)
        grads = [param.grad for param in model.parameters()]
        expected = [g.float() / 64 if g.dtype == torch.float16 else g for g in grads]
        masters = masters or list(amp.master_params(optimizer))
        for master, param, grad in zip(masters, model.parameters(), expected):
            assert master.grad is param.grad and torch.equal(master.grad, grad)
        optimizer.step()


LOOKS = {
    "repr": lambda model, optimizer: (repr(model), repr(optimizer)),
    "copy": lambda _, optimizer: copy.deepcopy(optimizer),
    "state dict": lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "norm": lambda _, optimizer: amp.clip_grad_norm_(optimizer, 1.0),
    "values": lambda _, optimizer: amp.clip_grad_value_(optimizer, 1.0),
    "schedule": lambda _, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    "average": lambda model, _: amp.AveragedModel(model).update_parameters(model),
    "report": lambda model, _: amp.report(model, batch()[0]),
    "group": lambda _, optimizer: optimizer.add_param_group(
        {"params": [torch.nn.Parameter(torch.ones(2).half())]}
    ),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_torchamps_own_looks_leave_grads_scaled(look):
    model, optimizer = lazy_training()
    for step in range(3):
        optimizer.zero_grad()
        backward(model, optimizer, step)
        assert shows_scaled_grads(model)
        look(model, optimizer)
        optimizer.step()


def test_sparse_grads_are_materialized_and_refused():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 3))
    model, optimizer = lazy_training(model=lambda: model, loss_scale=64.0)
    amp.scale_loss(model(torch.tensor([1, 2])).float().sum(), optimizer).backward()
    assert all(param.grad.dtype == torch.float32 for param in model.parameters())
    with pytest.raises(TypeError, match="to be dense"):
        optimizer.step()


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
@pytest.mark.parametrize("make", [fused_sgd, fused_adamw])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_norm_where_another_s_grads_skip_the_step_is_not_finite(level, make, norm_type):
    models = [linear_net(), linear_net()]
    made = [make(model) for model in models]
    amp.initialize(models, made, opt_level=level, loss_scale="dynamic", verbosity=0)
    loss = loss_of(models[0]) + loss_of(models[1])
    with overflow_at(models[0][0].bias), amp.scale_loss(loss, made) as scaled_loss:
        scaled_loss.backward()
    assert not amp.clip_grad_norm_(made[1], 1.0, norm_type).isfinite()
    before = models[1][0].weight.detach().clone()
    made[1].step()
    assert torch.equal(models[1][0].weight, before)


@pytest.mark.parametrize("options", [{"opt_level": "O0"}, {"opt_level": "O2", "enabled": False}])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
def test_clipping_without_a_scale_is_torchs(norm_type, options):
    models = [Net(), Net()]
    models[1].load_state_dict(models[0].state_dict())
    ours, optimizer = initialized(model=models[0], optimizer=fused_adamw, **options)
    for model in models:
        loss_of(model).backward()
    norm = amp.clip_grad_norm_(optimizer, 1e-3, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(models[1].parameters(), 1e-3, norm_type)
    assert torch.equal(norm, expected)
    for param, other in zip(ours.parameters(), models[1].parameters()):
        assert torch.equal(param.grad, other.grad)

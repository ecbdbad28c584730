"""The device work of an iteration after its backward: the fused pass over the grads, the fused
step, and none of torch's ops, each of which would be a launch."""

from __future__ import annotations

import pytest
import torch
from nets import (
    MASTER_LEVELS,
    Net,
    initialized,
    linear_net,
    loss_of,
    overflow_at,
    sgd,
    train_step,
)

from torchamp import amp, optimizers

#: torch's ops that run no kernel; a `to` that copies calls other ops.
WITHOUT_KERNELS = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::to"}

MAKERS = {
    "adamw": lambda model: optimizers.FusedAdamW(model.parameters(), 0.01),
    "sgd": lambda model: optimizers.FusedSGD(model.parameters(), 0.1, 0.5),
    "plain_sgd": lambda model: optimizers.FusedSGD(model.parameters(), 0.1),
}


def kernels_of_torch(model, optimizer, max_norm: float | None = None) -> list[str]:
    """Torch's ops from the end of the backward to the end of an iteration."""
    loss = loss_of(model)
    with torch.autograd.profiler.profile() as profile:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            with torch.autograd.profiler.record_function("backward"):
                scaled_loss.backward()
        if max_norm is not None:
            amp.clip_grad_norm_(optimizer, max_norm)
        optimizer.step()
        optimizer.zero_grad()
    events = profile.function_events
    end = next(event.time_range.end for event in events if event.name == "backward")
    names = [event.name for event in events if event.time_range.start >= end]
    return [name for name in names if name.startswith("aten::") and name not in WITHOUT_KERNELS]


@pytest.mark.parametrize("net", [Net, linear_net], ids=["with_norms", "linear"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("level", MASTER_LEVELS)
@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_torch_runs_no_kernel_after_the_backward(level, name, net, verbosity):
    options = {"loss_scale": "dynamic", "verbosity": verbosity}
    model, optimizer = initialized(level, net(), MAKERS[name], **options)
    for _ in range(2):
        train_step(model, optimizer)
    assert kernels_of_torch(model, optimizer) == []


def test_telemetry_and_overflows_add_none(heard):
    model, optimizer = initialized("O2", Net(), MAKERS["adamw"], verbosity=1)
    amp.telemetry(optimizer)
    train_step(model, optimizer)
    with overflow_at(model.first.weight):
        assert kernels_of_torch(model, optimizer) == []
    assert kernels_of_torch(model, optimizer) == []
    assert amp.telemetry(optimizer).skipped_steps == 1
    assert "gradient overflow in loss 0, at first.weight" in heard.take()


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_clipping_of_scaled_grads_adds_none(level):
    options = {"loss_scale": "dynamic", "materialize_master_grads": False}
    model, optimizer = initialized(level, linear_net(), MAKERS["adamw"], **options)
    for _ in range(2):
        train_step(model, optimizer)
        kernels_of_torch(model, optimizer, max_norm=0.1)
    assert kernels_of_torch(model, optimizer, max_norm=0.1) == []


@pytest.mark.parametrize("as_tensor", [False, True])
def test_learning_rates_that_change_add_none(as_tensor):
    model, optimizer = initialized("O2", linear_net(), MAKERS["adamw"], loss_scale="dynamic")
    for step in range(4):
        lr = 0.01 / (1 + step)
        optimizer.param_groups[0]["lr"] = torch.tensor(lr) if as_tensor else lr
        work = kernels_of_torch(model, optimizer)
    assert work == []


def test_a_foreign_step_is_seen():
    model, optimizer = initialized("O2", linear_net(), sgd)
    train_step(model, optimizer)
    assert kernels_of_torch(model, optimizer)

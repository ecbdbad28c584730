"""amp.report: dtypes and casts, module by module."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from nets import LEVELS, Net, batch, initialized, train_step
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchamp import amp


class Blocks(nn.Module):
    """A network with a shared block, a norm in float32 and casts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.block(self.block(x)))
        return self.head(x).double().softmax(-1).float()


class CastCounter(TorchDispatchMode):
    """Counts casts from one floating dtype to another."""

    def __init__(self) -> None:
        super().__init__()
        self.down = self.up = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].is_floating_point():
            self.down += result.dtype.itemsize < args[0].dtype.itemsize
            self.up += result.dtype.itemsize > args[0].dtype.itemsize
        return result


def row(report: amp.Report, name: str):
    return next(each for each in report.rows if each.name == name)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("net", [Net, Blocks])
def test_casts_are_those_that_torch_dispatches(level, net, device):
    model, _ = initialized(level, net(), device=device)
    x, _ = batch(device=device)
    with CastCounter() as counted:
        model(x)
    report = amp.report(model, x)
    assert sum(each.casts_down for each in report.rows) == counted.down
    assert sum(each.casts_up for each in report.rows) == counted.up
    assert (counted.down > 0) == (level != "O0" or net is Blocks)


@pytest.mark.parametrize(
    ("level", "linear", "norm"),
    [
        ("O0", torch.float32, torch.float32),
        ("O1", torch.float16, torch.float32),
        ("O2", torch.float16, torch.float16),
        ("O4", torch.bfloat16, torch.float32),
        ("O5", torch.bfloat16, torch.bfloat16),
    ],
)
def test_what_modules_compute_in(level, linear, norm, device):
    model, _ = initialized(level, Blocks(), device=device)
    report = amp.report(model, batch(device=device)[0])
    assert set(row(report, "block.0").compute_dtypes) == {linear}
    assert set(row(report, "block.1").compute_dtypes) == {norm}
    assert row(report, "block.0").calls == 2 and row(report, "").calls == 1
    assert set(row(report, "norm").weight_dtypes) == {torch.float32, torch.int64}
    assert report.level == level and f"{level} on {device}" in str(report)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_models_are_freed_with_their_last_reference(level):
    model, optimizer = initialized(level, Blocks())
    amp.report(model, batch()[0])
    seen = weakref.ref(model)
    gc.disable()
    try:
        del model, optimizer
        assert seen() is None
    finally:
        gc.enable()


def test_nothing_changes(device):
    model, optimizer = initialized("O2", nn.Sequential(Net(), nn.Dropout()), device=device)
    train_step(model, optimizer)
    grads = [param.grad.clone() for param in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    amp.report(model, batch(device=device)[0])
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())
    assert all(torch.equal(a, param.grad) for a, param in zip(grads, model.parameters()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_forward_that_raises_leaves_nothing_behind():
    model = Net()
    with pytest.raises(RuntimeError):
        amp.report(model, torch.ones(2, 5))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_batches_are_called_as_they_are_given():
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    one = torch.ones(3)
    for given in [(one, one), [one, one], {"a": one, "b": one}]:
        assert row(amp.report(Sum(), given), "").compute_dtypes == {torch.float32: 1}


def test_tf32_is_named():
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert "TF32 allowed" in str(amp.report(Net()))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert "TF32" not in str(amp.report(Net()))


def test_wrong_arguments():
    model, optimizer = initialized("O2")
    with pytest.raises(TypeError, match="^report: expected model to be a torch.nn.Module, got a "):
        amp.report([model])
    with pytest.raises(TypeError) as raised:
        amp.report(model, optimizer)
    assert str(raised.value) == (
        "report: expected batch to be what the model is called with, got an SGD; leave out the "
        "optimizer"
    )

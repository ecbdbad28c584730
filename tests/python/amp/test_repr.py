"""What repr shows."""

from __future__ import annotations

import pytest
import torch
from nets import LEVELS, Net, initialized, sgd, train_step
from torch import nn

import torchamp
from torchamp import amp

LINES = {
    "O0": "O0 (weights: float32, loss scale: 1)",
    "O1": "O1 (ops: float16 where that is safe, loss scale: dynamic)",
    "O2": "O2 (weights: float16, batch norms: float32, masters: float32, loss scale: dynamic)",
    "O3": "O3 (weights: float16, loss scale: 1)",
    "O4": "O4 (ops: bfloat16 where that is safe, loss scale: 1)",
    "O5": "O5 (weights: bfloat16, batch norms: float32, masters: float32, loss scale: 1)",
}


@pytest.mark.parametrize("opt_level", LEVELS)
def test_models_and_optimizers(opt_level, device):
    model, optimizer = initialized(opt_level, device=device)
    plain = Net()
    assert repr(model).splitlines()[:2] == ["Net(", f"  torchamp: {LINES[opt_level]}"]
    assert repr(model).splitlines()[2:] == repr(plain).splitlines()[1:]
    assert repr(optimizer) == repr(sgd(plain))


def test_amp(device):
    model = Net().to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    made = torchamp.Amp(model, sgd, "O2", num_losses=2, verbosity=0)
    lines = repr(made).splitlines()
    assert lines[:3] == ["Amp(", "  opt_level: O2", "  weights: float16"]
    assert lines[5:7] == ["  models: Net", "  optimizers: SGD"]
    assert lines[7].startswith("  loss scaler 0: LossScaler(loss_scale=65536, dynamic, ")
    assert repr(torchamp.Amp(Net(), enabled=False)) == "Amp(enabled=False)"


def test_loss_scalers(device):
    scaler = torchamp.LossScaler("dynamic", device=device)
    scaler.set_loss_scale(1024.0)
    assert repr(scaler).startswith("LossScaler(loss_scale=1024, dynamic, growth_factor=2, ")
    assert repr(torchamp.LossScaler(128.0)) == "LossScaler(loss_scale=128, fixed, device=cpu)"


def test_grad_scalers(device):
    scaler = torchamp.GradScaler(device.type, init_scale=512.0)
    assert repr(scaler) == (
        "GradScaler(scale=512, growth_factor=2, backoff_factor=0.5, growth_interval=2000, "
        f"device={device.type})"
    )
    assert repr(torchamp.GradScaler(enabled=False)) == "GradScaler(enabled=False)"


def test_models_that_were_cast_for_inference(device):
    model = amp.cast_for_inference(nn.Sequential(nn.Linear(2, 2)).to(device), torch.bfloat16)
    assert "torchamp: called with bfloat16" in repr(model)


def test_parts_that_keep_float32(device):
    model, _ = initialized("O2", device=device, keep_fp32="last")
    assert "torchamp: called with float32" in repr(model.last)
    assert "torchamp: called with float16" in repr(model.first)


def test_scale_loss_and_monitors(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer = initialized("O2", device=device)
    loss = amp.scale_loss(torch.ones((), device=device), optimizer)
    assert repr(loss) == "ScaledLoss(loss_id=0, optimizers=1)"
    with amp.Monitor(optimizer, "steps.csv", every=2) as monitor:
        train_step(model, optimizer)
        assert repr(monitor) == "Monitor(to='steps.csv', every=2, steps=1)"

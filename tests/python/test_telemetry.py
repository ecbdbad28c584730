"""What the host knows of steps that the device decides about."""

import pytest
import torch
from nets import Net, adam, initialized, overflow_at, sgd, train_step

from torchamp import amp, optimizers

MAKERS = {
    "foreign": sgd,
    "torch's fused": lambda model: adam(model, fused=True),
    "ours": lambda model: optimizers.FusedAdam(model.parameters(), 0.01),
}


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("verbosity", [0, 1])
def test_steps_and_scales(level, name, verbosity, capsys, device):
    options = {"loss_scale": "dynamic", "verbosity": verbosity}
    model, optimizer = initialized(level, Net(), MAKERS[name], device, **options)
    assert amp.telemetry(optimizer) == type(amp.telemetry(optimizer))()
    train_step(model, optimizer)
    known = finished(optimizer)
    assert (known.steps, known.skipped_steps, known.stepped) == (1, 0, True)
    assert known.loss_scales == (65536.0,)
    with overflow_at(model.first.weight):
        train_step(model, optimizer, 1)
    known = finished(optimizer)
    assert (known.steps, known.skipped_steps, known.stepped) == (2, 1, False)
    assert known.loss_scales == (32768.0,)
    train_step(model, optimizer, 2)
    assert finished(optimizer).stepped
    said = capsys.readouterr().out.count("gradient overflow in loss 0, at first.weight")
    assert said == verbosity


def finished(optimizer):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return amp.telemetry(optimizer)


def test_a_fixed_scale_skips_nothing():
    model, optimizer = initialized("O2", Net(), sgd, loss_scale=128.0)
    amp.telemetry(optimizer)
    train_step(model, optimizer)
    assert amp.telemetry(optimizer) == type(amp.telemetry(optimizer))(1, 0, True, (128.0,))


def test_several_losses():
    model, optimizer = initialized("O2", Net(), sgd, loss_scale="dynamic", num_losses=2)
    amp.telemetry(optimizer)
    with amp.scale_loss(model(torch.randn(5, 4)).float().sum(), optimizer, loss_id=1) as scaled:
        (scaled * float("inf")).backward()
    optimizer.step()
    assert amp.telemetry(optimizer).loss_scales == (65536.0, 32768.0)
    assert amp.telemetry(optimizer).skipped_steps == 1


def test_of_an_optimizer_that_is_not_amps():
    with pytest.raises(RuntimeError, match="telemetry: expected optimizer to be an optimizer that"):
        amp.telemetry(sgd(Net()))

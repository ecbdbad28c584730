"""The host's information about steps that the device may skip."""

import contextlib

import pytest
import torch
from nets import (
    Net,
    adam,
    finished,
    initialized,
    loss_of,
    overflow_at,
    sgd,
    train_step,
)

from torchamp import amp, optimizers

MAKERS = {
    "foreign": sgd,
    "torch's fused": lambda model: adam(model, fused=True),
    "ours": lambda model: optimizers.FusedAdam(model.parameters(), 0.01),
}


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_steps_and_scales(level, name, verbosity, heard, device):
    options = {"loss_scale": "dynamic", "verbosity": verbosity}
    model, optimizer = initialized(level, Net(), MAKERS[name], device, **options)
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
    said = heard.take().count("gradient overflow in loss 0, at first.weight")
    assert said == min(verbosity, 1)


def test_nothing_is_known_before_the_first_step():
    _, optimizer = initialized("O2")
    assert amp.telemetry(optimizer) == amp.Telemetry(0, 0, None, ())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("verbosity", [0, 1])
def test_every_step_of_a_mix_is_counted(name, verbosity, heard, device):
    options = {"loss_scale": "dynamic", "verbosity": verbosity}
    model, optimizer = initialized("O2", Net(), MAKERS[name], device, **options)
    skipped = 0
    for step in range(100):
        overflows = step % 9 in (2, 3)
        with overflow_at(model.last.bias) if overflows else contextlib.nullcontext():
            train_step(model, optimizer, step)
        skipped += overflows
    known = finished(optimizer)
    assert (known.steps, known.skipped_steps, known.stepped) == (100, skipped, True)
    assert known.loss_scales == (65536 * 0.5**skipped,)
    lines = [line for line in heard.take().splitlines() if "overflow" in line]
    scales = [f"loss scale now {65536 * 0.5**i:g}" for i in range(1, skipped + 1)]
    assert [line.split("step skipped, ")[1] for line in lines] == scales * verbosity


def test_three_parameters_are_named_and_the_rest_counted(heard):
    model, optimizer = initialized("O2", Net(), sgd, verbosity=1)
    with contextlib.ExitStack() as stack:
        for param in model.parameters():
            stack.enter_context(overflow_at(param))
        train_step(model, optimizer)
    named = "at first.weight, first.bias, norm.weight and 3 more: step skipped"
    assert named in heard.take()


def test_optimizers_of_one_loss_skip_together(heard):
    models = [Net(), Net()]
    made = [MAKERS["ours"](models[0]), sgd(models[1])]
    amp.initialize(models, made, opt_level="O2", verbosity=1)
    with overflow_at(models[1].first.bias):
        amp.scale_loss(loss_of(models[0]) + loss_of(models[1]), made).backward()
    for optimizer in made:
        optimizer.step()
        assert amp.telemetry(optimizer).skipped_steps == 1
    said = heard.take()
    assert "gradient overflow in loss 0: step skipped" in said, "none of the first's grads"
    assert "gradient overflow in loss 0, at models[1].first.bias: step skipped" in said


def test_a_scale_that_was_loaded_is_the_scale():
    model, optimizer = initialized("O2", Net(), sgd, num_losses=2)
    state = amp.state_dict()
    state["loss_scaler1"]["loss_scale"] = 1024.0
    amp.load_state_dict(state)
    train_step(model, optimizer)
    assert amp.telemetry(optimizer).loss_scales == (65536.0, 1024.0)


@pytest.mark.parametrize("name", MAKERS)
def test_a_scheduler_follows_the_steps_that_were_taken(name):
    """As in docs/optimizers.md."""
    model, optimizer = initialized("O2", Net(), MAKERS[name])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(6):
        with overflow_at(model.first.weight, float("inf") if step in (1, 2) else 0.0):
            train_step(model, optimizer, step)
        known = amp.telemetry(optimizer)
        while scheduler.last_epoch < known.steps - known.skipped_steps:
            scheduler.step()
    assert scheduler.last_epoch == 4

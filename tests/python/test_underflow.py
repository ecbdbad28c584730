"""Steps by grads that are all zero although the loss is not: telemetry tells them apart, and the
first is reported."""

from __future__ import annotations

import pytest
import torch
from nets import Net, initialized, loss_of, overflow_at, sgd, train_step

from torchamp import amp, optimizers

MAKERS = {
    "foreign": sgd,
    "torch's fused": lambda model: torch.optim.Adam(model.parameters(), 0.01, fused=True),
    "ours": lambda model: optimizers.FusedAdam(model.parameters(), 0.01),
}
#: So small that every float16 grad is zero, at the scales of these tests.
VANISHING = 2.0**-60
MESSAGE = "WARNING: gradient underflow in loss 0: step taken with gradients that are all zero"


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def backward(model, optimizer, factor=1.0, loss_id=0, **options):
    with amp.scale_loss(loss_of(model) * factor, optimizer, loss_id, **options) as scaled_loss:
        scaled_loss.backward()


def step(model, optimizer, *factors, **options):
    """A step of as many micro-batches as factors; whether it underflowed."""
    optimizer.zero_grad()
    for factor in factors[:-1]:
        backward(model, optimizer, factor, **options)
    backward(model, optimizer, factors[-1])
    optimizer.step()
    return finished(optimizer).underflowed


def finished(optimizer):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return amp.telemetry(optimizer)


@pytest.mark.parametrize("loss_scale", ["dynamic", 2.0**-10])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("verbosity", [0, 1])
def test_a_step_by_zeros_is_told_apart_and_reported_once(
    level, loss_scale, verbosity, make, heard, device
):
    options = {"loss_scale": loss_scale, "verbosity": verbosity}
    model, optimizer = initialized(level, Net(), make, device, **options)
    heard.take()
    amp.telemetry(optimizer)
    underflowed = [step(model, optimizer, factor) for factor in (1, VANISHING, 1, VANISHING)]
    assert underflowed == [False, True, False, True]
    known = finished(optimizer)
    assert (known.steps, known.skipped_steps, known.stepped) == (4, 0, True)
    assert known.underflowed_steps == 2
    said = heard.take()
    assert said.count("\n") == said.count(MESSAGE) == verbosity
    assert verbosity == 0 or "raise the loss scale" in said


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_loss_scale_that_is_far_too_low_underflows(level, make, heard, device):
    options = {"loss_scale": 2.0**-40, "verbosity": 1}
    model, optimizer = initialized(level, Net(), make, device, **options)
    amp.telemetry(optimizer)
    for _ in range(3):
        train_step(model, optimizer)
    assert finished(optimizer).underflowed_steps == 3
    said = heard.take()
    assert f"{MESSAGE} although the loss is not, loss scale now 9.09495e-13; raise" in said


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0, 1.0])
def test_healthy_training_never_underflows(level, loss_scale, make, heard, device):
    options = {"loss_scale": loss_scale, "verbosity": 1}
    model, optimizer = initialized(level, Net(), make, device, **options)
    amp.telemetry(optimizer)
    for seed in range(10):
        train_step(model, optimizer, seed)
        assert not finished(optimizer).underflowed
    assert (known := finished(optimizer)).underflowed_steps == 0 and known.steps == 10
    assert "underflow" not in heard.take()


@pytest.mark.parametrize("level", ["O1", "O2", "O5"])
def test_a_loss_of_zero_is_none(level, make, heard, device):
    model, optimizer = initialized(level, Net(), make, device, loss_scale=128.0, verbosity=1)
    amp.telemetry(optimizer)
    assert not step(model, optimizer, 0)
    assert finished(optimizer).stepped
    assert "underflow" not in heard.take()


@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0])
@pytest.mark.parametrize("delay", [{}, {"delay_unscale": True}, {"delay_overflow_check": True}])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_one_micro_batch_that_is_not_zero_is_enough(level, delay, loss_scale, make, device):
    model, optimizer = initialized(level, Net(), make, device, loss_scale=loss_scale)
    amp.telemetry(optimizer)
    assert step(model, optimizer, VANISHING, VANISHING, VANISHING, **delay)
    assert step(model, optimizer, 0, VANISHING, **delay)
    assert not step(model, optimizer, 0, 0, **delay)
    assert not step(model, optimizer, 1, VANISHING, VANISHING, **delay)
    assert not step(model, optimizer, VANISHING, 1, VANISHING, **delay)
    assert not step(model, optimizer, VANISHING, VANISHING, 1, **delay)


@pytest.mark.parametrize("delay", [{}, {"delay_overflow_check": True}])
def test_a_last_loss_of_zero_hides_none(delay, make):
    model, optimizer = initialized("O2", Net(), make)
    amp.telemetry(optimizer)
    assert step(model, optimizer, VANISHING, 0, **delay)


@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0])
def test_delayed_grads_of_another_scale_count(loss_scale, make):
    model, optimizer = initialized("O2", Net(), make, loss_scale=loss_scale, num_losses=2)
    amp.telemetry(optimizer)
    for first, underflows in ((1, False), (VANISHING, True)):
        optimizer.zero_grad()
        backward(model, optimizer, first, loss_id=0, delay_unscale=True)
        state = amp.state_dict()
        state["loss_scaler1"]["loss_scale"] = 64.0
        amp.load_state_dict(state)
        backward(model, optimizer, VANISHING, loss_id=1)
        optimizer.step()
        assert finished(optimizer).underflowed == underflows


def test_grads_that_were_zeroed_do_not_count(make):
    model, optimizer = initialized("O2", Net(), make)
    amp.telemetry(optimizer)
    backward(model, optimizer)
    assert step(model, optimizer, VANISHING)


def test_a_skipped_step_is_none(make):
    model, optimizer = initialized("O2", Net(), make)
    amp.telemetry(optimizer)
    backward(model, optimizer, VANISHING)
    with overflow_at(model.first.bias):
        backward(model, optimizer)
    optimizer.step()
    known = finished(optimizer)
    assert (known.stepped, known.underflowed, known.underflowed_steps) == (False, False, 0)


def test_deferred_grads_that_are_materialized_count(make):
    model, optimizer = initialized("O2", Net(), make)
    amp.telemetry(optimizer)
    list(amp.master_params(optimizer))
    assert step(model, optimizer, VANISHING)
    assert not step(model, optimizer, 1)


def two_of_each(make):
    """Models and their optimizers, of one initialize, whose steps are counted."""
    models = [Net(), Net()]
    made = [make(model) for model in models]
    amp.initialize(models, made, opt_level="O2", verbosity=0)
    for optimizer in made:
        amp.telemetry(optimizer)
    return models, made


def test_each_optimizer_has_its_own(make):
    models, made = two_of_each(make)
    loss = loss_of(models[0]) + loss_of(models[1]) * VANISHING
    with amp.scale_loss(loss, made) as scaled_loss:
        scaled_loss.backward()
    for optimizer in made:
        optimizer.step()
    assert [finished(optimizer).underflowed for optimizer in made] == [False, True]


def test_an_optimizer_that_the_loss_does_not_reach_has_none(make):
    models, made = two_of_each(make)
    with amp.scale_loss(loss_of(models[0]), made) as scaled_loss:
        scaled_loss.backward()
    made[0].step()
    with pytest.warns(UserWarning, match="expected grads, got none"):
        made[1].step()
    assert not any(finished(optimizer).underflowed for optimizer in made)

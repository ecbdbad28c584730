"""Stages 4 and 6: the scaler against apex's rule, its state, and its errors."""

import math
import random

import pytest
import torch
from reference.loss_scaler import LossScaler as Reference
from reference.loss_scaler import OfApex

from torchamp import LossScaler, ops


def drive(scaler: LossScaler, overflow: bool) -> None:
    scaler.clear_found_inf()
    if overflow:
        scaler.found_inf().fill_(1)
    scaler.update()


@pytest.mark.parametrize("loss_scale", ["dynamic", 65536.0])
def test_it_recovers_from_one_overflow(loss_scale, device):
    """The loop that its documentation shows."""
    scaler = LossScaler(loss_scale, device=device)
    skipped = []
    for step in range(25):
        grads = [torch.full((3,), math.inf if step == 2 else 1.0, device=device)]
        ops.unscale(grads, grads, scaler.inv_scale(), scaler.found_inf())
        if scaler.found_inf().item():
            skipped.append(step)
        scaler.update()
    assert skipped == [2]
    assert scaler.loss_scale() == (32768.0 if scaler.dynamic else 65536.0)


def scripts() -> dict[str, list[bool]]:
    rng = random.Random(0)
    return {
        "clean": [False] * 10_000,
        "always": [True] * 200,
        "rare": [rng.random() < 1 / 1500 for _ in range(10_000)],
        "often": [rng.random() < 0.3 for _ in range(10_000)],
        "bursts": [(i // 2100) % 2 == 1 and i % 7 == 0 for i in range(10_000)],
    }


@pytest.mark.parametrize("script", scripts())
@pytest.mark.parametrize("limits", [{}, {"min_loss_scale": 128.0, "max_loss_scale": 2.0**17}])
def test_trajectory(device, script, limits):
    rule = {name.replace("_loss", ""): value for name, value in limits.items()}
    scaler = LossScaler("dynamic", rule=ops.ScaleRule(**rule), device=device)
    reference = Reference(**limits)
    for overflow in scripts()[script]:
        drive(scaler, overflow)
        reference.update(overflow)
        assert scaler.state()[:2] == (reference.loss_scale, reference.unskipped)


def is_collapse(overflow: bool, loss_scale: float) -> bool:
    return overflow and loss_scale <= 2.0**-10


def test_without_a_collapse_the_trajectory_is_apexs():
    scaler, reference, rng = LossScaler(), OfApex(), random.Random(3)
    for _ in range(20_000):
        overflow = rng.random() < 1 / 700
        overflow = overflow and not is_collapse(overflow, reference.loss_scale)
        drive(scaler, overflow)
        reference.update(overflow)
        assert scaler.state()[:2] == (reference.loss_scale, reference.unskipped)
    assert reference.loss_scale < 1


@pytest.mark.parametrize("share", [1.0, 0.9, 0.6])
def test_the_scale_recovers_from_a_storm(share):
    scaler, rng = LossScaler(), random.Random(1)
    for _ in range(500):
        drive(scaler, rng.random() < share)
    for _ in range(3):
        drive(scaler, overflow=True)
    for _ in range(40):
        drive(scaler, overflow=False)
    assert scaler.loss_scale() >= 2.0**16


def test_the_scale_never_reaches_zero():
    scaler = LossScaler(rule=ops.ScaleRule(min_scale=0.0))
    for _ in range(300):
        drive(scaler, overflow=True)
    assert scaler.loss_scale() == torch.finfo(torch.float32).tiny
    assert math.isfinite(scaler.inv_scale().item())


@pytest.mark.parametrize("bounds", [(8.0, 4.0), (-1.0, 4.0), (math.nan, 4.0), (1.0, math.nan)])
def test_bounds_that_contradict_each_other(bounds):
    with pytest.raises(ValueError, match="LossScaler: expected min_scale to be between 0 and max"):
        LossScaler(rule=ops.ScaleRule(min_scale=bounds[0], max_scale=bounds[1]))


def test_a_scale_above_its_maximum_comes_down():
    scaler = LossScaler()
    scaler.rule = ops.ScaleRule(max_scale=1024.0)
    drive(scaler, overflow=False)
    assert scaler.loss_scale() == 1024.0


def test_hysteresis_forgives_until_a_clean_backward():
    scaler = LossScaler(rule=ops.ScaleRule(hysteresis=3))
    scales = []
    for overflow in (True, True, True, True, False, True, True, True):
        drive(scaler, overflow)
        scales.append(scaler.loss_scale() / 2**16)
    assert scales == [1, 1, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125]


def test_a_fixed_scale_stays():
    scaler = LossScaler(128)
    drive(scaler, overflow=True)
    assert scaler.loss_scale() == 128 and not scaler.dynamic and not scaler.is_identity
    assert LossScaler("1.0").is_identity


def test_scale_is_float32_of_any_shape(device):
    scaler = LossScaler("4", device=device)
    for loss in (torch.tensor(2.0), torch.ones(3, 2).half(), torch.ones(1).bfloat16()):
        scaled = scaler.scale(loss.to(device))
        assert scaled.dtype == torch.float32 and scaled.shape == loss.shape
        assert torch.equal(scaled.cpu(), loss.float() * 4)


def test_the_inverse_belongs_to_its_backward():
    scaler = LossScaler()
    inv_scale = scaler.inv_scale()
    drive(scaler, overflow=True)
    assert inv_scale.item() == 2.0**-16 and scaler.inv_scale().item() == 2.0**-15


def test_state_round_trip():
    scaler, other = LossScaler(rule=ops.ScaleRule(hysteresis=2)), LossScaler()
    for overflow in (False, False, True, False):
        drive(scaler, overflow)
    other.load_state(*scaler.state())
    assert other.state() == scaler.state() == (2.0**16, 1, 2)


@pytest.mark.parametrize(
    "make, message",
    [
        *(
            (lambda value=value: LossScaler(value), "the initial scale to be positive and finite")
            for value in (0, 1e39, 1e-46, math.nan, math.inf, -1.0)
        ),
        (lambda: LossScaler("nonsense"), 'to be "dynamic" or a number, got "nonsense"'),
        (lambda: LossScaler().set_loss_scale(math.nan), "value to be positive and finite, got nan"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loss_of_integers_is_refused():
    with pytest.raises(TypeError, match="scale_loss: expected loss to be a floating-point tensor"):
        LossScaler().scale(torch.ones((), dtype=torch.int64))

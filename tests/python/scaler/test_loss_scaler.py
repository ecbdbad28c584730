"""LossScaler as Python programs use it. Its rule is tested in C++, and over training in
test_same_numbers.py."""

import math

import pytest
import torch

from torchamp import LossScaler, ops


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


def test_scale_is_float32_of_any_shape(device):
    scaler = LossScaler("4", device=device)
    assert not scaler.is_identity and LossScaler("1.0").is_identity
    for loss in (torch.tensor(2.0), torch.ones(3, 2).half(), torch.ones(1).bfloat16()):
        scaled = scaler.scale(loss.to(device))
        assert scaled.dtype == torch.float32 and scaled.shape == loss.shape
        assert torch.equal(scaled.cpu(), loss.float() * 4)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: LossScaler(0),
            "LossScaler: expected the initial scale to be positive and finite, got 0",
        ),
        (
            lambda: LossScaler().set_loss_scale(math.nan),
            "set_loss_scale: expected value to be positive and finite, got nan",
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()

"""The attributes of apex's LossScaler: what a program assigns, of any type, is taken or refused."""

import math

import apex.amp._amp_state
import numpy as np
import pytest
import torch
from apex.amp.scaler import LossScaler
from compat.optimizers import initialized


@pytest.fixture
def scaler():
    model, optimizer = initialized()
    yield apex.amp._amp_state.loss_scalers[0]
    del model, optimizer


SCALES = ["_loss_scale", "_max_loss_scale", "_min_loss_scale"]
COUNTS = ["_scale_seq_len", "_unskipped"]
SIXTEEN = [
    *(16, 16.0, np.float32(16), np.float64(16), np.int64(16), "16"),
    *(torch.tensor(16), torch.tensor(16.0), torch.tensor([16.0]), torch.tensor(16).half()),
]


@pytest.mark.parametrize("value", SIXTEEN, ids=repr)
@pytest.mark.parametrize("name", SCALES + COUNTS)
def test_numbers_of_every_type_are_taken(name, value, scaler):
    setattr(scaler, name, value)
    taken = getattr(scaler, name)
    assert taken == 16 and type(taken) is (int if name in COUNTS else float)


REFUSED = [None, math.nan, math.inf, -1, "dynamic", [16], torch.ones(2, 3)]


@pytest.mark.parametrize("value", REFUSED, ids=repr)
@pytest.mark.parametrize("name", SCALES + COUNTS)
def test_others_are_refused_in_one_sentence(name, value, scaler):
    before = getattr(scaler, name)
    if name == "_min_loss_scale" and value is None:
        return
    above = -1 if name == "_unskipped" else 0
    with pytest.raises(ValueError) as raised:
        setattr(scaler, name, value)
    message = f"LossScaler: expected {name} to be a finite number above {above}, got {value!r}"
    assert str(raised.value) == message
    assert getattr(scaler, name) == before


@pytest.mark.parametrize("none", [None, 0, 0.0])
def test_no_lower_bound(none, scaler):
    assert scaler._min_loss_scale is None
    scaler._min_loss_scale = 4.0
    scaler._min_loss_scale = none
    assert scaler._min_loss_scale is None


def test_the_other_attributes_are_readable(scaler):
    assert scaler._scale_factor == 2.0 and scaler.dynamic and not scaler._has_overflow
    assert scaler._overflow_buf.dtype == torch.int32 and scaler._overflow_buf.shape == (1,)
    scaler._scale_factor = 2
    assert scaler._scale_factor == 2


def test_a_scaler_of_the_program_s_own_is_torchamp_s():
    for options in ({}, {"min_loss_scale": 1.0}):
        with pytest.raises(TypeError) as raised:
            LossScaler("dynamic", **options)
        assert str(raised.value) == (
            "LossScaler: expected one of initialize's, _amp_state.loss_scalers, got a new one; use "
            "torchamp.LossScaler"
        )

"""The attributes of apex's LossScaler: what a program assigns, of any type, is taken or refused."""

import math

import apex.amp._amp_state
import numpy as np
import pytest
import torch
from apex import amp
from apex.amp.scaler import LossScaler
from nets import linear_net, loss_of, overflow_at, sgd

SCALES = ["_loss_scale", "_max_loss_scale", "_min_loss_scale"]
COUNTS = ["_scale_seq_len", "_unskipped"]
SIXTEEN = [
    *(16, 16.0, np.float32(16), np.float64(16), np.int64(16), "16"),
    *(torch.tensor(16), torch.tensor(16.0), torch.tensor([16.0]), torch.tensor(16).half()),
]


@pytest.mark.parametrize("value", SIXTEEN, ids=repr)
@pytest.mark.parametrize("name", SCALES + COUNTS)
def test_numbers_of_every_type_are_taken(name, value):
    scaler = LossScaler("dynamic")
    setattr(scaler, name, value)
    taken = getattr(scaler, name)
    assert taken == 16 and type(taken) is (int if name in COUNTS else float)


REFUSED = {
    "none": (None, TypeError, "a number, got None"),
    "nan": (math.nan, TypeError, "a number, got nan"),
    "text": ("dynamic", TypeError, "a number, got 'dynamic'"),
    "list": ([16], TypeError, "a number, got a list"),
    "tensor": (torch.ones(2, 3), TypeError, "a number, got a tensor of sizes [2, 3]"),
    "array": (np.ones(2), TypeError, "a number, got a ndarray"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", SCALES + COUNTS)
def test_what_is_no_number_is_refused_in_one_sentence(name, case):
    value, error, message = REFUSED[case]
    scaler = LossScaler("dynamic")
    before = getattr(scaler, name)
    if name == "_min_loss_scale" and value is None:
        scaler._min_loss_scale = None
        return
    with pytest.raises(error) as raised:
        setattr(scaler, name, value)
    assert str(raised.value) == f"LossScaler: expected {name} to be {message}"
    assert getattr(scaler, name) == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("_loss_scale", 0, "positive and finite, got 0"),
        ("_loss_scale", -1.0, "positive and finite, got -1.0"),
        ("_loss_scale", math.inf, "positive and finite, got inf"),
        ("_max_loss_scale", 0.0, "positive and finite, got 0.0"),
        ("_min_loss_scale", math.inf, "positive and finite, got inf"),
        ("_scale_seq_len", 4.5, "a whole number of at least 1, got 4.5"),
        ("_scale_seq_len", 0, "a whole number of at least 1, got 0"),
        ("_unskipped", torch.tensor(0.5), "a whole number of at least 0, got tensor(0.5000)"),
        ("_unskipped", -1, "a whole number of at least 0, got -1"),
    ],
)
def test_values_out_of_range_are_refused_in_one_sentence(name, value, message):
    scaler = LossScaler("dynamic")
    before = getattr(scaler, name)
    with pytest.raises(ValueError) as raised:
        setattr(scaler, name, value)
    assert str(raised.value) == f"LossScaler: expected {name} to be {message}"
    assert getattr(scaler, name) == before


def test_bounds_that_are_none():
    scaler = LossScaler("dynamic")
    for value in (None, 0, 0.0, -1):
        scaler._min_loss_scale = 4.0
        scaler._min_loss_scale = value
        assert scaler._min_loss_scale is None
    scaler._max_loss_scale, scaler._scale_seq_len = math.inf, math.inf
    assert scaler._max_loss_scale == 2.0**127 and scaler._scale_seq_len == 2**31 - 1


def test_arguments_are_taken_alike():
    scaler = LossScaler("dynamic", np.float32(8), scale_window=2.0, max_loss_scale=torch.tensor(16))
    assert [scaler.update_scale() for _ in range(4)] == [False] * 4
    assert scaler.loss_scale() == 16.0 and LossScaler(torch.tensor(4.0)).loss_scale() == 4.0
    for options, message in [
        ({"scale_window": 1.5}, "scale_window to be a whole number of at least 1, got 1.5"),
        ({"init_scale": None}, "init_scale to be a number, got None"),
        ({"max_loss_scale": None}, "max_loss_scale to be a number, got None"),
    ]:
        with pytest.raises((TypeError, ValueError)) as raised:
            LossScaler("dynamic", **options)
        assert str(raised.value) == f"LossScaler: expected {message}"


def test_a_growth_interval_that_argparse_made_a_float():
    """GNMT's --upscale-interval."""
    model = linear_net()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    scaler = apex.amp._amp_state.loss_scalers[0]
    scaler._loss_scale, scaler._scale_seq_len = 64, 2.0
    scales = []
    for value in (0.0, 0.0, 0.0, math.inf, 0.0, 0.0):
        optimizer.zero_grad()
        with overflow_at(model[0].weight, value):
            with amp.scale_loss(loss_of(model), optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        scales.append(scaler.loss_scale())
    assert scales == [64.0, 128.0, 128.0, 64.0, 64.0, 128.0]


def test_the_other_attributes_are_readable():
    model = linear_net()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    for scaler in (apex.amp._amp_state.loss_scalers[0], LossScaler("dynamic")):
        assert scaler._scale_factor == 2.0 and scaler.dynamic and not scaler._has_overflow
        assert scaler._overflow_buf.dtype == torch.int32 and scaler._overflow_buf.shape == (1,)
        scaler._scale_factor = 2
        assert scaler._scale_factor == 2

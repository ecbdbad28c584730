"""Stage 1: the table of levels, overrides, and errors."""

import re

import pytest
import torch
from nets import initialized

from torchamp import Amp, amp
from torchamp.amp._run.settings import settings_for

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
COLUMNS = ("cast_model_type", "autocast_type", "keep_batchnorm_fp32", "master_weights")
TABLE = {
    "O0": (F32, None, None, False, 1.0),
    "O1": (None, F16, None, None, "dynamic"),
    "O2": (F16, None, True, True, "dynamic"),
    "O3": (F16, None, False, False, 1.0),
    "O4": (None, BF16, None, None, 1.0),
    "O5": (BF16, None, True, True, 1.0),
}


@pytest.mark.parametrize("opt_level", TABLE)
def test_table(opt_level):
    properties = settings_for(opt_level).properties
    assert properties.opt_level == opt_level
    assert tuple(getattr(properties, c) for c in (*COLUMNS, "loss_scale")) == TABLE[opt_level]


@pytest.mark.parametrize(
    "opt_level, name, given, got",
    [
        ("O2", "loss_scale", 128, 128.0),
        ("O2", "loss_scale", "128.0", 128.0),
        ("O0", "loss_scale", "dynamic", "dynamic"),
        ("O1", "loss_scale", 1, 1.0),
        ("O2", "keep_batchnorm_fp32", False, False),
        ("O2", "keep_batchnorm_fp32", "False", False),
        ("O3", "keep_batchnorm_fp32", "True", True),
        ("O3", "master_weights", True, True),
        ("O2", "master_weights", 0, False),
        ("O2", "cast_model_type", BF16, BF16),
        ("O2", "cast_model_type", False, None),
        ("O1", "cast_model_type", False, None),
        ("O1", "cast_model_type", F32, F32),
        ("O1", "patch_torch_functions", False, None),
        ("O2", "patch_torch_functions", False, None),
    ],
)
def test_override(opt_level, name, given, got):
    properties = settings_for(opt_level, **{name: given}).properties
    column = "autocast_type" if name == "patch_torch_functions" else name
    assert getattr(properties, column) == got


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"opt_level": "01"}, RuntimeError, 'got "01"; did you mean "O1" (letter O, digit)?'),
        (
            {"opt_level": "bf16-mixed"},
            RuntimeError,
            '"bf16-mixed"; did you mean "O4" (ops in bfloat16) or "O5" (a bfloat16 model)?',
        ),
        (
            {"opt_level": BF16},
            RuntimeError,
            '"torch.bfloat16"; did you mean "O4" (ops in bfloat16) or "O5" (a bfloat16 model)?',
        ),
        (
            {"opt_level": "16-mixed"},
            RuntimeError,
            '"16-mixed"; did you mean "O1" (ops in float16) or "O2" (a float16 model)?',
        ),
        ({"cast_model_type": F16}, RuntimeError, "cast_model_type cannot be set at opt_level O1"),
        ({"keep_batchnorm_fp32": True}, RuntimeError, "keep_batchnorm_fp32 cannot be set at"),
        ({"master_weights": True}, RuntimeError, "master_weights cannot be set at opt_level O1"),
        ({"num_losses": 2**70}, ValueError, f"num_losses to fit into 64 bits, got {2**70}"),
        ({"max_consecutive_skips": -(2**70)}, ValueError, f"to fit into 64 bits, got {-(2**70)}"),
        ({"num_losses": 1.5}, TypeError, "num_losses to be an integer, got 1.5"),
    ],
)
def test_refused(arguments, error, message):
    with pytest.raises(error, match="^initialize: .*" + re.escape(message)):
        initialized(**{"opt_level": "O1", **arguments})


def test_a_level_in_the_place_of_enabled_is_refused():
    with pytest.raises(TypeError, match="got 'O2'; write opt_level='O2'"):
        amp.initialize(torch.nn.Linear(2, 2), None, "O2")


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ([None] * 11, {}, "too many positional arguments"),
        ([None], {"cast_model_type": None}, "multiple values for argument 'cast_model_type'"),
        ([], {"cast_model": None}, "got an unexpected keyword argument 'cast_model'"),
    ],
)
def test_options_that_initialize_does_not_take(arguments, options, message):
    with pytest.raises(TypeError, match=re.escape(f"initialize() {message}")):
        amp.initialize(torch.nn.Linear(2, 2), None, True, "O2", *arguments, **options)


@pytest.mark.parametrize("by_place", [False, True])
def test_there_may_be_no_maximum_of_the_loss_scale(by_place):
    model = torch.nn.Linear(2, 2)
    if by_place:
        amp.initialize(model, None, True, "O2", *([None] * 6), 1, 0, None, None)
    else:
        Amp(model, None, "O2", max_loss_scale=None, verbosity=0)
    assert model._torchamp.session.scalers[0].rule.max_scale == float("inf")


def test_the_settings_are_logged(heard):
    initialized("O2", verbosity=1, loss_scale=128.0)
    said = heard.take()
    assert "opt_level O2" in said
    assert re.search(r"loss_scale +: 128.0  \(override\)", said)
    assert re.search(r"master_weights +: True\n", said)
    initialized("O2", verbosity=0)
    assert heard.take() == ""


@pytest.mark.parametrize(
    ("level", "other"),
    [("O1", "O4"), ("O2", "O5"), ("O3", "O5"), ("O0", ""), ("O4", ""), ("O5", "")],
)
def test_float16_on_a_cpu_is_said_to_be_slow(level, other, heard, device):
    amp.initialize(torch.nn.Linear(2, 2).to(device), opt_level=level)
    is_slow = bool(other) and device.type == "cpu"
    line = f"\n  float16 is slow on most CPUs; {other} computes in bfloat16\n"
    said = heard.take()
    assert (line in said) == is_slow == ("slow" in said)

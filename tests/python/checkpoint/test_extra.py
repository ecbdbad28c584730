"""What a program adds to a checkpoint: schedulers, counts, states of random numbers."""

from __future__ import annotations

import math
import pathlib
import re

import pytest
import torch
from nets import file_by, initialized

import torchamp
from torchamp import amp

TRAINING = str(pathlib.Path(__file__).parents[1] / "support" / "processes" / "resumed_training.py")


@pytest.mark.parametrize(
    "level", ["O2", *[pytest.param(level, marks=pytest.mark.soak) for level in ("O1", "O5")]]
)
def test_a_resumed_run_is_bit_for_bit_the_same(python, tmp_path, level):
    pytest.importorskip("numpy")
    whole = python(TRAINING, level, str(tmp_path / "whole.pt"), "7")
    parts = [python(TRAINING, level, str(tmp_path / "parts.pt"), end) for end in ("3", "7")]
    assert parts[-1] == whole and parts[0] != whole


def saved_and_loaded(extra):
    file = file_by(lambda file: amp.save(*initialized("O2"), file, extra))
    return amp.load(*initialized("O2"), file)


def test_it_is_what_was_saved():
    extra = {
        "epoch": 3,
        "best": -math.inf,
        "name": "run",
        "none": None,
        "flags": (True, False),
        "nested": {"list": [1, 2.5, {"deep": -(2**31)}], 7: "by number"},
        "tensor": torch.arange(3),
        "large": torch.tensor(2**40),
    }
    loaded = saved_and_loaded(extra)
    for name in ("tensor", "large"):
        assert torch.equal(loaded.pop(name), extra.pop(name))
    assert loaded == extra
    assert [type(each) for each in loaded["flags"]] == [bool, bool]


def test_files_without_it():
    assert saved_and_loaded(None) == {}
    file = file_by(lambda file: amp.save(*initialized("O2"), file))
    checkpoint = torch.load(file, weights_only=True)
    del checkpoint["extra"]
    older = file_by(lambda file: torch.save(checkpoint, file))
    assert amp.load(*initialized("O2"), older) == {}


def test_those_of_an_amp_and_of_a_disabled_one():
    for enabled in (True, False):
        owner = torchamp.Amp(torch.nn.Linear(2, 2), None, "O2", enabled=enabled, verbosity=0)
        file = file_by(lambda file, owner=owner: owner.save(file, {"epoch": 3}))
        assert owner.load(file) == {"epoch": 3}


TEXT = "amp.save: expected {} to be a tensor, a number, text or a container of these, got {}"
REFUSED = [
    ([1], "amp.save: expected extra to be a dict or None, got a list"),
    ({"f": len}, TEXT.format("extra.f", "builtin_function_or_method")),
    ({"a": [{"b": object()}]}, TEXT.format("extra.a[0].b", "object")),
    ({1: 2}, "amp.save: expected the keys of extra to be text, got an int"),
    ({"a": {(): 2}}, "amp.save: expected the keys of extra.a to be text or integers, got a tuple"),
    (
        {"seed": [2**31]},
        "amp.save: expected extra.seed[0] to be an integer of 32 bits, got 2147483648; save "
        "torch.tensor of it",
    ),
]


@pytest.mark.parametrize("extra, message", REFUSED)
def test_what_is_refused(tmp_path, extra, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        amp.save(*initialized("O2"), tmp_path / "run.pt", extra)
    assert not list(tmp_path.iterdir())


def test_a_file_whose_extra_is_no_dict():
    file = file_by(lambda file: amp.save(*initialized("O2"), file))
    checkpoint = {**torch.load(file, weights_only=True), "extra": [1]}
    wrong = file_by(lambda file: torch.save(checkpoint, file))
    message = "amp.load: expected extra of the checkpoint to be a dict, got [1]"
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        amp.load(*initialized("O2"), wrong)

"""What stands in C++ and in Python, because a binding would be longer, is the same."""

import pathlib
import re

import pytest
import torch

from torchamp._tools.inspect import iteration, preflight, trial
from torchamp.amp import _grad_scaler

CSRC = pathlib.Path(__file__).parents[3] / "csrc"
PREFLIGHT, ROUNDING, ITERATION = (
    f"tools/inspect/{name}.cpp" for name in ("preflight", "rounding", "iteration")
)

#: C++'s file and constant, and Python's value.
CONSTANTS = [
    (PREFLIGHT, "kMaxLossError", trial.MAX_LOSS_ERROR),
    (PREFLIGHT, "kMaxGradError", trial.MAX_GRAD_ERROR),
    (PREFLIGHT, "kLess", preflight._LESS),
    (ROUNDING, "kMaxError", trial.MAX_OUTPUT_ERROR),
    (ROUNDING, "kSamples", iteration._SAMPLES),
    (ITERATION, "kTimed", iteration._TIMED),
    (ITERATION, "kEnough", 1000 * iteration._SECONDS),
    ("frontend/grad_scaler.cpp", "kMaxScale", _grad_scaler._MAX_SCALE),
]


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?\b\d+(?:\.\d+)?\b", text)]


def value_of(file, constant):
    """The numbers of what the constant is set to."""
    text = (CSRC / file).read_text(encoding="utf-8")
    value = re.search(rf"\b{constant}(?: = |{{)(.*?)}}?;", text).group(1)
    return numbers_in(re.sub(r'"\w+"', "", value))


@pytest.mark.parametrize("file, constant, value", CONSTANTS, ids=[row[1] for row in CONSTANTS])
def test_constants(file, constant, value):
    if constant == "kMaxScale":
        expected = [1.0, torch.tensor(value).log2().item()]  # ldexp's arguments
    else:
        expected = [value]
    assert value_of(file, constant) == expected


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_the_order_of_levels(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    function = (CSRC / PREFLIGHT).read_text(encoding="utf-8").partition("> preferred(")[2]
    without_bfloat16, others = (
        re.findall(r"O\d", row) for row in re.findall(r"return {(.*)};", function)[:2]
    )
    wanted = without_bfloat16 if capability < (8, 0) else others
    assert preflight._preferred(torch.device("cuda")) == tuple(wanted)

"""A torch.autocast of the program around a model that initialize has cast is told."""

import contextlib
import sys

import pytest
import torch
from nets import batch, initialized, linear_net, warned
from torch import nn

import torchamp
from torchamp import Amp, amp

DTYPES = {"O2": torch.float16, "O3": torch.float16, "O5": torch.bfloat16}
OTHER = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}
TOLD = (
    "forward: expected no torch.autocast around a model that initialize has cast to {}, got one to "
    "{}, which casts its ops again; leave torch.autocast out"
)


def told_by(*calls) -> list[str]:
    with warned() as texts:
        for call in calls:
            call()
    return texts


def within(context, model):
    """A call of the model in it."""

    def call():
        with context:
            model(batch()[0])

    return call


def hidden_of(model: nn.Module) -> list[torch.dtype]:
    """The dtypes that its first module computes in from now on."""
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    return seen


@pytest.mark.parametrize("level", DTYPES)
def test_it_is_told_once_and_right_without(level):
    own, other = DTYPES[level], OTHER[DTYPES[level]]
    model, _ = initialized(level, linear_net())
    hidden = hidden_of(model)
    call = within(torch.autocast("cpu", other), model)
    assert told_by(call, torch.no_grad()(call), lambda: model(batch()[0])) == [
        TOLD.format(own, other)
    ]
    assert hidden == [other, other, own]


def test_it_is_told_whatever_opens_it():
    own = torch.bfloat16
    for context in (torchamp.autocast("cpu", own), torch.autocast("cpu")):
        model, _ = initialized("O5", linear_net())
        assert told_by(within(context, model)) == [TOLD.format(own, own)]
    with Amp(linear_net(), opt_level="O4", verbosity=0):
        model, _ = initialized("O5", linear_net())
        assert told_by(within(torch.autocast("cpu", own), model)) == [TOLD.format(own, own)]


class CastsAPart(nn.Sequential):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@contextlib.contextmanager
def of_another_device():
    torch.set_autocast_enabled("xla", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("xla", False)


def test_what_is_not_told():
    off = torch.autocast("cpu", enabled=False)
    for level in DTYPES:
        model, _ = initialized(level, linear_net())
        assert told_by(within(off, model), within(of_another_device(), model)) == []
        with torch.autocast("cpu", torch.bfloat16):
            assert told_by(within(off, model)) == []
        with Amp(linear_net(), opt_level="O1", verbosity=0):
            assert told_by(within(contextlib.nullcontext(), model)) == []
        model, _ = initialized(level, CastsAPart(*linear_net()))
        assert told_by(within(contextlib.nullcontext(), model)) == []
    for level, dtype in (("O0", None), ("O1", torch.float16), ("O4", torch.bfloat16)):
        model, _ = initialized(level, linear_net())
        assert told_by(within(torch.autocast("cpu", dtype or torch.bfloat16), model)) == []
        amp.release(model)
    teacher = amp.cast_for_inference(linear_net(), torch.float16)
    assert told_by(within(torch.autocast("cpu", torch.bfloat16), teacher)) == []


def test_it_is_told_of_compiled_models():
    model, _ = initialized("O2", linear_net())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    call = within(torch.autocast("cpu", torch.bfloat16), compiled)
    assert told_by(call, call, lambda: compiled(batch()[0])) == [
        TOLD.format(torch.float16, torch.bfloat16)
    ]
    torch._dynamo.reset()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
@pytest.mark.parametrize("level", DTYPES)
def test_errors_name_it(level):
    own, other = DTYPES[level], OTHER[DTYPES[level]]
    model, _ = initialized(level, nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)))
    text = TOLD.format(own, other)
    with pytest.raises(RuntimeError) as raised, pytest.warns(UserWarning, match="torch.autocast"):
        within(torch.autocast("cpu", other), model)()
    assert raised.value.__notes__ == [f"torchamp: {text}"]
    assert told_by(lambda: model(batch()[0])) == []

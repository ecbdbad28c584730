"""A step is one transaction whatever its arguments: its closure is called where parameters are the
model's, and all others come as they were given. Weights are compared with torch's own."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS
from torch import nn

from torchamp import amp

MODULE, TENSOR, KIND = nn.Linear(1, 1), torch.ones(2), torch.optim.SGD
DYNAMIC = {"loss_scale": "dynamic", "max_loss_scale": 64.0}
#: By signature, the arguments of calls.
CALLS: dict[str, list[str]] = {
    "self, epoch=None, closure=None": ["", "3", "epoch=3", "KIND, closure", "3, closure=closure"],
    "self, closure=None, scale=1.0": [
        "closure, 0.5",
        "closure, scale=0.5",
        "scale=0.5",
        "None, 0.5",
    ],
    "self, *, closure=None, **kwargs": ["closure=closure, model=MODULE"],
    "self, *args, **kwargs": ["closure, 3", "closure=closure", "MODULE", "TENSOR, len", "KIND"],
    "*args, **kwargs": ["closure, KIND"],
    "self, first=None, *args": ["MODULE", "len, len"],
}
every_call = [(signature, call) for signature, calls in CALLS.items() for call in calls]


def step_of(signature: str) -> Callable:
    """A step that takes an eighth of the grad, and has closures called and the rest kept."""
    made: dict[str, Callable] = {}
    exec(f"def step({signature}): return take(locals())", {"take": take}, made)
    return made["step"]


def take(given: dict[str, Any]) -> Any:
    values = [*given.pop("args", ()), *given.pop("kwargs", {}).values(), *given.values()]
    (optimizer,) = (each for each in values if isinstance(each, torch.optim.Optimizer))
    closures = [v for v in values if isinstance(v, (types.MethodType, functools.partial))]
    optimizer.given.append([v for v in values if v is not optimizer and v not in closures])
    with torch.enable_grad():
        losses = [closure() for closure in closures]
    weight = optimizer.param_groups[0]["params"][0]
    optimizer.dtypes.append(weight.dtype)
    with torch.no_grad():
        weight.sub_(weight.grad, alpha=0.125)
    return losses


class Closing(nn.Module):
    """A closure that is a module."""

    def __init__(self, closure: Callable) -> None:
        super().__init__()
        self.forward = closure


class Run:
    """A weight of 2 with a grad of 4, at `level` or in plain torch."""

    def __init__(self, signature: str, level: str = "", bind="class", **options) -> None:
        self.model, self.level, self.called_in = nn.Linear(1, 1, bias=False), level, []
        nn.init.constant_(self.model.weight, 2.0)
        step = step_of(signature) if signature else None
        kind = type("Own", (KIND,), {"step": step}) if step and bind == "class" else KIND
        self.optimizer = kind(self.model.parameters(), lr=0.125)
        self.optimizer.given, self.optimizer.dtypes = [], []
        if bind == "object":
            self.optimizer.step = functools.partial(step, self.optimizer)
        if level:
            amp.initialize(self.model, self.optimizer, opt_level=level, verbosity=0, **options)

    def closure(self, factor: float = 1.0) -> str:
        self.called_in.append(self.model.weight.dtype)
        self.optimizer.zero_grad()
        loss = factor * 4 * self.model(torch.ones(1, 1)).float().sum()
        with amp.scale_loss(loss, self.optimizer) if self.level else nullcontext(loss) as scaled:
            scaled.backward()
        return "the loss"

    def step(self, call: str, factor: float = 1.0) -> tuple:
        if "closure" not in call:
            self.closure(factor)
        names = {**globals(), "optimizer": self.optimizer, "closure": self.closure}
        loss = eval(f"optimizer.step({call})", names)
        (master,) = amp.master_params(self.optimizer)
        return master.item(), loss, self.optimizer.given, len(self.called_in)


@pytest.fixture
def run():
    """Makes a Run, which is released."""
    made = []
    yield lambda *args, **options: made.append(Run(*args, **options)) or made[-1]
    for each in made:
        amp.release(each.model)


@pytest.mark.parametrize("bind", ["class", "object"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("signature, call", every_call)
def test_arguments_are_those_of_plain_torch(signature, call, level, bind, run):
    one = run(signature, level, bind, loss_scale=64.0)
    dtype = one.model.weight.dtype
    found = one.step(call)
    assert found == Run(signature).step(call) and found[0] == 1.5
    assert one.called_in == [dtype]
    assert one.optimizer.dtypes == [torch.float32 if level in MASTER_LEVELS else dtype]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("signature, call", [each for each in every_call if "clos" not in each[1]])
def test_an_overflow_skips_it_whatever_its_arguments(signature, call, level, run):
    one = run(signature, level, **DYNAMIC)
    values = [one.step(call, factor)[0] for factor in (1.0, math.inf, 1.0)]
    assert values == [1.5, 1.5, 1.0] and len(one.optimizer.given) == 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("call", ["closure", "closure=closure", "Closing(closure)"])
def test_torch_s_own_take_a_closure_at_a_dynamic_scale(call, level, run):
    one = run("", level, **DYNAMIC)
    dtype = one.model.weight.dtype
    assert one.step(call) == (1.5, "the loss", [], 1) and one.called_in == [dtype]


@pytest.mark.parametrize("bind", ["class", "object"])
def test_others_do_not(bind, run):
    one = run("self, closure=None, scale=1.0", "O2", bind, **DYNAMIC)
    with pytest.raises(RuntimeError) as caught:
        one.step("closure, 0.5")
    assert str(caught.value) == (
        "step: expected a fixed loss scale for an optimizer that may call its closure several "
        "times, got a dynamic one, which skips steps; give initialize a loss_scale, or take O4 or "
        "O5, which need none. With an optimizer that needs the grads once, run the backward in "
        "scale_loss, then call step()"
    )
    assert one.called_in == [] and one.optimizer.given == []


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_closure_is_torch_s_error(level, run):
    with pytest.raises(TypeError, match="'str' object is not callable"):
        run("", level, loss_scale=64.0).step("'x'")

"""A step is one transaction whatever its arguments: its closure is called where parameters are the
model's, and all others come as they were given. Weights are compared with torch's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from nets import LEVELS, MASTER_LEVELS
from torch import nn

from torchamp import amp

CLOSURE, MODULE, TENSOR, KIND = "closure", nn.Linear(1, 1), torch.ones(2), torch.optim.SGD


def take(optimizer: Any, *given: Any, closure: Any = None) -> Any:
    """Halves, by the rate, and keeps what it was given; calls the closure among it."""
    weight = optimizer.param_groups[0]["params"][0]
    optimizer.given.append(given)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    optimizer.dtypes.append(weight.dtype)
    with torch.no_grad():
        weight.sub_(weight.grad, alpha=0.125)
    return loss


def closure_second(self, epoch=None, closure=None):
    return take(self, epoch, closure=closure)


def closure_first(self, closure=None, scale=1.0, *rest):
    return take(self, scale, *rest, closure=closure)


def by_keyword(self, *, closure=None, **others):
    return take(self, others, closure=closure)


def any_first(self, *args, **kwargs):
    kwargs.setdefault("closure", args[0] if args and args[0] is not TENSOR else None)
    return take(self, *args[1:], closure=kwargs["closure"])


def without_self(*args, **kwargs):
    return any_first(*args, **kwargs)


def no_closure(self, first=None, *rest):
    return take(self, first, *rest)


def only_data(self, *args):
    return take(self, *args)


CALLS: list[tuple[Callable, tuple, dict]] = [
    (closure_second, (), {}),
    (closure_second, (3,), {}),
    (closure_second, (), {"epoch": 3}),
    (closure_second, (KIND, CLOSURE), {}),
    (closure_second, (3,), {"closure": CLOSURE}),
    (closure_first, (CLOSURE, 0.5), {}),
    (closure_first, (CLOSURE,), {"scale": 0.5}),
    (closure_first, (), {"closure": CLOSURE, "scale": 0.5}),
    (closure_first, (None, 0.5, MODULE), {}),
    (by_keyword, (), {"closure": CLOSURE, "model": MODULE}),
    (any_first, (CLOSURE, 3), {}),
    (any_first, (), {"closure": CLOSURE}),
    (without_self, (CLOSURE, KIND), {}),
    (no_closure, (MODULE,), {}),
    (no_closure, (len, len), {}),
    (only_data, (MODULE,), {}),
    (only_data, (TENSOR, len), {}),
    (only_data, (KIND,), {}),
]


DYNAMIC = {"loss_scale": "dynamic", "max_loss_scale": 64.0}


class Run:
    """A weight of 2 with a grad of 4, at `level` or in plain torch."""

    def __init__(self, step: Callable | None, level: str = "", bind="class", **options) -> None:
        self.model, self.level, self.called_in = nn.Linear(1, 1, bias=False), level, []
        nn.init.constant_(self.model.weight, 2.0)
        of_class = {"step": step} if bind == "class" else {}
        kind = type("Own", (torch.optim.SGD,), of_class) if step else torch.optim.SGD
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

    def step(self, args: tuple, kwargs: dict, factor: float = 1.0) -> tuple:
        if CLOSURE not in (*args, *kwargs.values()):
            self.closure(factor)
        given = [self.closure if each is CLOSURE else each for each in args]
        named = {name: self.closure if v is CLOSURE else v for name, v in kwargs.items()}
        loss = self.optimizer.step(*given, **named)
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
@pytest.mark.parametrize("step, args, kwargs", CALLS)
def test_arguments_are_those_of_plain_torch(step, args, kwargs, level, bind, run):
    one = run(step, level, bind, loss_scale=64.0)
    dtype = one.model.weight.dtype
    found = one.step(args, kwargs)
    assert found == Run(step).step(args, kwargs) and found[0] == 1.5
    assert one.called_in == [dtype]
    assert one.optimizer.dtypes == [torch.float32 if level in MASTER_LEVELS else dtype]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "step, args", [(closure_second, (3,)), (no_closure, (MODULE,)), (only_data, ("x",))]
)
def test_an_overflow_skips_it_whatever_its_arguments(step, args, level, run):
    one = run(step, level, **DYNAMIC)
    taken = [args]
    assert one.step(args, {})[:3] == (1.5, None, taken)
    assert one.step(args, {}, factor=math.inf) == (1.5, None, taken, 2)
    assert one.step(args, {}) == (1.0, None, taken * 2, 3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("args, kwargs", [((CLOSURE,), {}), ((), {"closure": CLOSURE})])
def test_torch_s_own_take_a_closure_at_a_dynamic_scale(args, kwargs, level, run):
    assert run(None, level, **DYNAMIC).step(args, kwargs) == (1.5, "the loss", [], 1)


@pytest.mark.parametrize("bind", ["class", "object"])
def test_others_do_not(bind, run):
    one = run(closure_first, "O2", bind, **DYNAMIC)
    with pytest.raises(RuntimeError, match="expected a fixed loss scale for an optimizer that may"):
        one.step((CLOSURE, 0.5), {})
    assert one.called_in == [] and one.optimizer.given == []


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_closure_is_torch_s_error(level, run):
    one = run(None, level, loss_scale=64.0)
    with pytest.raises(TypeError, match="'str' object is not callable"):
        one.step(("x",), {})

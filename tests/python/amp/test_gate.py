"""Which calls of optimizers are torchamp's: every step of what initialize was given, whoever has
bound it; none of a stranger's. Steps are compared with those of a class with the same step."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import (
    LEVELS,
    MASTER_LEVELS,
    backward,
    changed,
    everything,
    linear_net,
    loss_of,
    overflow_at,
)
from torch.optim.lr_scheduler import StepLR

from torchamp import amp, optimizers
from torchamp._load import _C
from torchamp.amp import _gate

Optimizer = torch.optim.Optimizer
Step = Callable[..., Any]
calls: list[Any] = []


def last(optimizer: Any) -> torch.Tensor:
    return optimizer.param_groups[-1]["params"][0]


@torch.no_grad()
def own_step(self: Any, closure: None = None) -> None:
    calls.append(last(self).dtype)
    for group in self.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.add_(param.grad, alpha=-group["lr"])


class Ordinary(Optimizer):
    def __init__(self, params: Any, lr: float = 0.125) -> None:
        super().__init__(params, {"lr": lr})

    step = own_step


def nothing(optimizer: Any) -> None: ...


def initialized(
    level: str, make: Step = Ordinary, before: Step = nothing, after: Step = nothing, of: Any = None
) -> tuple:
    torch.manual_seed(0)
    model = of or linear_net()
    optimizer = make(model.parameters(), lr=0.125)
    before(optimizer)
    options = {"loss_scale": "dynamic", "max_loss_scale": 1024.0, "verbosity": 0}
    amp.initialize(model, optimizer, opt_level=level, **options)
    after(optimizer)
    return model, optimizer


def trained(level: str, step: Step | None = None, **binding: Step) -> tuple:
    """Everything after steps of which two are skipped, the scale, and the calls of own_step."""
    calls.clear()
    model, optimizer = initialized(level, **binding)
    for seed in range(5):
        optimizer.zero_grad()
        with overflow_at(model[0].weight) if seed in (1, 3) else contextlib.nullcontext():
            backward(model, optimizer, seed)
        step(optimizer) if step else optimizer.step()
    result = (
        everything(model, optimizer),
        amp.state_dict()["loss_scaler0"],
        sum(isinstance(each, torch.dtype) for each in calls),
    )
    amp.release(model)
    return result


def bind(optimizer: Any) -> None:
    optimizer.step = types.MethodType(own_step, optimizer)


def bind_function(optimizer: Any) -> None:
    optimizer.step = lambda: own_step(optimizer)


def bind_partial(optimizer: Any) -> None:
    optimizer.step = functools.partial(own_step, optimizer)


def bind_another_class_s(optimizer: Any) -> None:
    class Other(Optimizer):
        step = own_step

    Other([torch.zeros(1)], {})
    optimizer.step = types.MethodType(Other.step, optimizer)


def count(optimizer: Any) -> None:
    inner = optimizer.step
    optimizer.step = lambda: (calls.append("outer"), inner())[1]


def count_as_wrapper(optimizer: Any) -> None:
    inner = optimizer.step
    optimizer.step = functools.wraps(inner)(lambda: inner())


def schedule(optimizer: Any) -> None:
    StepLR(optimizer, 100)


def both(one: Step, other: Step) -> Step:
    return lambda optimizer: (one(optimizer), other(optimizer))


def patch(optimizer: Any) -> None:
    type(optimizer).step = own_step


def patch_base(optimizer: Any) -> None:
    type(optimizer).__bases__[0].step = own_step


def patch_hiding(optimizer: Any) -> None:
    inner = type(optimizer).step
    type(optimizer).step = lambda self: (calls.append("outer"), inner(self))[1]


def subclass_of(base: type) -> Step:
    """A class of its own, to be patched."""

    def make(*args: Any, **options: Any) -> Optimizer:
        between = type("Between", (base,), {})
        return type("Own", (between,), {})(*args, **options)

    return make


def counting(base: type, **more: Any) -> Step:
    def make(*args: Any, **options: Any) -> Optimizer:
        class Counting(base):
            def step(self) -> None:
                calls.append(last(self).dtype)
                super().step()

        return Counting(*args, **options, **more)

    return make


def capture(optimizer: Any) -> None:
    optimizer.captured = optimizer.step


SGD, FusedSGD = torch.optim.SGD, optimizers.FusedSGD
torchs_fused = functools.partial(SGD, fused=True)
WAYS: dict[str, dict[str, Step]] = {
    "captured before": {"before": capture, "step": lambda optimizer: optimizer.captured()},
    "captured after": {"after": capture, "step": lambda optimizer: optimizer.captured()},
    "by its type": {"step": lambda optimizer: type(optimizer).step(optimizer)},
    "by super": {"make": counting(SGD)},
    "scheduler before": {"before": schedule},
    "scheduler after": {"after": schedule},
    "counted before": {"before": count},
    "counted after": {"after": both(count, count)},
    "bound before": {"make": SGD, "before": bind},
    "bound after": {"make": SGD, "after": bind},
    "function before": {"make": SGD, "before": bind_function},
    "partial after": {"make": SGD, "after": bind_partial},
    "another class's": {"make": SGD, "after": bind_another_class_s},
    "bound, then scheduler": {"make": SGD, "before": bind, "after": schedule},
    "scheduler, then bound": {"make": SGD, "before": schedule, "after": bind},
    "bound and scheduler": {"make": SGD, "after": both(bind, schedule)},
    "bound over torch's fused": {"make": torchs_fused, "after": bind},
    "bound over a fused one": {"make": FusedSGD, "after": bind},
    "class patched": {"make": subclass_of(SGD), "after": patch},
    "base patched": {"make": subclass_of(SGD), "after": patch_base},
    "fused class patched": {"make": subclass_of(FusedSGD), "after": patch},
    "class patched, hiding": {"make": subclass_of(Ordinary), "after": patch_hiding},
    "own around torch's fused": {"make": counting(SGD, fused=True)},
    "own around a fused one": {"make": counting(FusedSGD)},
}


@functools.cache
def expected(level: str) -> tuple:
    return trained(level)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_way_to_bind_a_step_is_the_ordinary_one(level, way):
    wanted, scale, taken = expected(level)
    found = trained(level, **WAYS[way])
    assert found[1:] == (scale, taken) and taken == 3
    if (level, way) != ("O3", "own around torch's fused"):  # which rounds otherwise
        assert not changed(wanted, found[0])


PLACES: dict[str, Step] = {
    "scale_loss": lambda model, optimizer: backward(model, optimizer),
    "finish": lambda model, optimizer: amp.finish(optimizer),
    "zero_grad": lambda model, optimizer: optimizer.zero_grad(),
    "clip_grad_norm_": lambda model, optimizer: amp.clip_grad_norm_(optimizer, 1.0),
    "clip_grad_value_": lambda model, optimizer: amp.clip_grad_value_(optimizer, 1.0),
    "master_params": lambda model, optimizer: amp.master_params(optimizer),
}


@pytest.mark.parametrize("give", [bind, patch])
@pytest.mark.parametrize("place", PLACES)
def test_where_a_new_step_is_found(place, give):
    model, optimizer = initialized("O2", subclass_of(SGD))
    give(optimizer)
    PLACES[place](model, optimizer)
    calls.clear()
    optimizer.step()
    assert calls == [torch.float32]
    amp.release(model)


@pytest.mark.parametrize("lead", [nothing, schedule, count_as_wrapper])
def test_hooks_run_around_a_step_that_leads_to_the_class_s(lead):
    model, optimizer = initialized("O2", after=lead)
    hooked = lambda optimizer, *_: calls.append(last(optimizer).dtype)  # noqa: E731
    optimizer.register_step_pre_hook(hooked)
    optimizer.register_step_post_hook(hooked)
    backward(model, optimizer)
    calls.clear()
    optimizer.step()
    assert calls == [torch.float16, torch.float32, torch.float16]
    amp.release(model)


class Nesting(Ordinary):
    """Around one with a step of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.inner = SGD(self.param_groups, lr=lr)

    def step(self) -> None:
        self.inner.step()


@pytest.mark.parametrize("give", [bind, bind_function, bind_partial])
@pytest.mark.parametrize("of", [lambda o: o, lambda o: o.inner], ids=["given", "inner"])
def test_release_gives_the_object_s_own_back(of, give):
    owns: list[Any] = []

    def before(optimizer: Any) -> None:
        give(of(optimizer))
        owns.append(vars(of(optimizer))["step"])

    model, optimizer = initialized("O2", Nesting, before)
    backward(model, optimizer)
    optimizer.step()
    amp.release(model)
    assert vars(of(optimizer))["step"] == owns[0] and amp.release(model) is None
    calls.clear()
    optimizer.step()
    assert calls == [torch.float32]


class Careful(Optimizer):
    """Its constructor calls methods of its own, before there are groups and after."""

    def __init__(self, params: Any, lr: float) -> None:
        self.validate(lr)
        super().__init__(params, {"lr": lr})
        self.validate(lr)

    def validate(self, lr: float) -> None:
        calls.append("validate")

    step = own_step


class Shy(Careful):
    """Tells who looks at it."""

    def __getattr__(self, name: str) -> Any:
        calls.append(name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        calls.append("eq")
        return self is other

    def __hash__(self) -> int:
        calls.append("hash")
        return id(self)


class Shadowed(Careful):
    """Its groups are there before Optimizer's constructor, and no list of dicts."""

    def __init__(self, params: Any, lr: float) -> None:
        self.param_groups = tuple(params)
        super().__init__(self.param_groups, lr)


STRANGERS = [Careful, Shy, Shadowed, torchs_fused, FusedSGD]


def alone(make: Step, give: Step) -> tuple:
    """What a program that torchamp was never told of gets and can see."""
    torch.manual_seed(0)
    calls.clear()
    model = linear_net()
    optimizer = make(model.parameters(), lr=0.125)
    schedule(optimizer)
    give(optimizer)
    own = vars(optimizer)["step"]
    for seed in range(3):
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
    optimizer.add_param_group({"params": [torch.ones(2)]})
    assert vars(optimizer)["step"] is own
    return everything(model, optimizer), [*calls], [*vars(optimizer)], vars(type(optimizer)).keys()


@pytest.mark.parametrize("give", [nothing, bind])
@pytest.mark.parametrize("make", STRANGERS)
def test_strangers_are_as_without_amp(make, give):
    """Of classes whose base, or they themselves, were given."""
    wanted = alone(make, give)
    model, _ = initialized("O2", lambda *args, **options: make(*args, **options))
    found = alone(make, give)
    amp.release(model)
    assert not changed(wanted[0], found[0]) and wanted[1:] == found[1:]
    assert not changed(wanted[0], alone(make, give)[0])


@pytest.fixture
def asked(monkeypatch):
    """Whose owners were looked for."""
    groups: list[Any] = []
    owners = lambda of: (groups.append(of), _C.owners(of))[1]  # noqa: E731
    monkeypatch.setattr(_gate, "_C", types.SimpleNamespace(owners=owners))
    return groups


class Named(Careful):
    def name(self) -> str:
        return "Named"


@pytest.mark.parametrize("make", [Named, FusedSGD, torchs_fused])
def test_a_stranger_is_looked_up_once_for_each_change(make, asked):
    model, optimizer = initialized("O2", Named)
    stranger = make([torch.zeros(2, requires_grad=True)], lr=0.125)
    changes: list[Step] = [
        lambda: initialized("O5", Named),
        lambda: stranger.add_param_group({"params": [torch.ones(2)]}),
        lambda: optimizer.param_groups[0]["params"].append(torch.ones(2, requires_grad=True)),
        lambda: optimizer.param_groups[0]["params"].pop(),
    ]
    for change in (lambda: None, *changes, lambda: None):
        change()
        backward(model, optimizer)
        optimizer.step()
        asked.clear()
        for _ in range(3):
            stranger.step()
            getattr(stranger, "name", nothing)(*[] if hasattr(stranger, "name") else [0])
        assert len(asked) <= 1
    assert asked == [] and id(stranger) in _gate._known
    key = id(stranger)
    del stranger
    assert key not in _gate._known
    amp.release(model)


class Reading(Optimizer):
    """Around one whose groups are its own, by a property; calls no constructor."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.state = inner, inner.state

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self) -> None:
        calls.append(last(self).dtype)
        self.inner.step()


@pytest.mark.parametrize("change", ["initialize", "groups", "owner"])
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_stranger_that_comes_to_step_masters_finds_them(level, change):
    class Late(Optimizer):
        """Of a class that no initialize has seen."""

        step = own_step

    model, optimizer = initialized(level)
    other, extra = linear_net(), model[0].weight.detach().clone().requires_grad_()
    start = {"initialize": other.parameters(), "groups": [torch.ones(2)], "owner": [extra]}
    late = Late(start[change], {"lr": 0.125})
    late.step()
    if change == "initialize":
        model, optimizer = initialized(level, SGD, of=other)
    elif change == "groups":
        late.add_param_group({"params": [model[0].weight]})
    else:
        optimizer.param_groups[0]["params"].append(extra)
    backward(model, optimizer)
    calls.clear()
    late.step()
    assert calls == [torch.float32] and last(late).dtype != torch.float32
    amp.release(model)


@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_wrapper_whose_groups_are_a_property_finds_masters(level):
    model, optimizer = initialized(level)
    backward(model, optimizer)
    calls.clear()
    Reading(optimizer).step()
    assert calls == [torch.float32] * 2
    amp.release(model)

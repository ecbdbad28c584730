"""Which calls of optimizers are torchamp's: every step of what initialize was given, whoever has
bound it; none of a stranger's. Steps are compared with those of a class with the same step."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any

import nets
import pytest
import torch
from nets import LEVELS, MASTER_LEVELS, backward, changed, everything, linear_net, overflow_at
from torch.optim.lr_scheduler import StepLR

from torchamp import amp, optimizers
from torchamp._load import _C
from torchamp.amp._optimizer import gate as _gate

Optimizer, SGD, FusedSGD = torch.optim.Optimizer, torch.optim.SGD, optimizers.FusedSGD
torchs_fused = functools.partial(SGD, fused=True)
Step = Callable[..., Any]
calls: list[Any] = []


def last(optimizer: Any) -> torch.Tensor:
    return optimizer.param_groups[-1]["params"][0]


@torch.no_grad()
def own_step(self: Any, closure: None = None) -> None:
    calls.append(last(self).dtype)
    for param in (param for group in self.param_groups for param in group["params"]):
        if param.grad is not None:
            param.add_(param.grad, alpha=-0.125)


class Ordinary(Optimizer):
    """Its constructor calls a method of its own, before there are groups and after."""

    def __init__(self, params: Any, lr: float) -> None:
        self.name()
        super().__init__(params, {"lr": lr})
        self.name()

    def name(self) -> None:
        calls.append("name")

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
    calls.clear()
    return model, optimizer


def trained(level: str, step: Step = lambda optimizer: optimizer.step(), **binding: Step) -> tuple:
    """Everything after five steps of which two are skipped, the scale, and the steps taken."""
    model, optimizer = initialized(level, **binding)
    for seed in range(5):
        optimizer.zero_grad()
        with overflow_at(model[0].weight) if seed in (1, 3) else contextlib.nullcontext():
            backward(model, optimizer, seed)
        step(optimizer)
    taken = sum(isinstance(each, torch.dtype) for each in calls)
    result = everything(model, optimizer), amp.state_dict()["loss_scaler0"], taken
    amp.release(model)
    return result


def put(make: Step) -> Step:
    return lambda optimizer: setattr(optimizer, "step", make(optimizer))


def hiding(inner: Step) -> Step:
    return lambda *args: inner(*args)


method = put(lambda optimizer: types.MethodType(own_step, optimizer))
function = put(lambda optimizer: lambda: own_step(optimizer))
partial = put(lambda optimizer: functools.partial(own_step, optimizer))
hidden = put(lambda optimizer: hiding(optimizer.step))
wrapped = put(lambda optimizer: functools.wraps(optimizer.step)(hiding(optimizer.step)))
another_class_s = put(lambda optimizer: types.MethodType(type(other()).step, optimizer))


def other() -> Optimizer:
    return type("Other", (Ordinary,), {"step": own_step})([torch.zeros(1)], lr=0.125)


def capture(optimizer: Any) -> None:
    optimizer.captured = optimizer.step


def schedule(optimizer: Any) -> None:
    StepLR(optimizer, 100)


def patch(optimizer: Any, of: int = 0, step: Step = own_step) -> None:
    type(optimizer).__mro__[of].step = step


def patch_hiding(optimizer: Any) -> None:
    patch(optimizer, step=hiding(type(optimizer).step))


def new(base: type) -> Step:
    """Makes one of a class and a base of its own, to be patched."""
    base([torch.zeros(1)], lr=0.125)  # torch wraps the step that the class of the first one has
    return lambda *args, **options: type("Own", (type("Base", (base,), {}),), {})(*args, **options)


def around(base: type, **more: Any) -> Step:
    """Makes one whose class has a step around that of `base`."""

    def step(self: Any) -> None:
        calls.append(last(self).dtype)
        base.step(self)

    return lambda *args, **options: type("Own", (base,), {"step": step})(*args, **options, **more)


WAYS: dict[str, dict[str, Step]] = {
    "captured before": {"before": capture, "step": lambda optimizer: optimizer.captured()},
    "captured after": {"after": capture, "step": lambda optimizer: optimizer.captured()},
    "by its type": {"step": lambda optimizer: type(optimizer).step(optimizer)},
    "around another": {"make": around(SGD)},
    "around torch's fused": {"make": around(SGD, fused=True)},
    "around a fused one": {"make": around(FusedSGD)},
    "scheduler before": {"before": schedule},
    "scheduler after": {"after": schedule},
    "hidden before": {"before": hidden},
    "hidden twice after": {"after": lambda optimizer: (hidden(optimizer), hidden(optimizer))},
    "wrapped before": {"before": wrapped},
    "method before": {"make": SGD, "before": method},
    "method after": {"make": SGD, "after": method},
    "function before": {"make": SGD, "before": function},
    "partial after": {"make": SGD, "after": partial},
    "another class's": {"make": SGD, "after": another_class_s},
    "method, then scheduler": {"make": SGD, "before": method, "after": schedule},
    "scheduler, then method": {"make": SGD, "before": schedule, "after": method},
    "method over torch's fused": {"make": torchs_fused, "after": method},
    "method over a fused one": {"make": FusedSGD, "after": method},
    "class patched": {"make": new(SGD), "after": patch},
    "base patched": {"make": new(SGD), "after": lambda optimizer: patch(optimizer, 1)},
    "fused class patched": {"make": new(FusedSGD), "after": patch},
    "class patched, hiding": {"make": new(Ordinary), "after": patch_hiding},
}


@functools.cache
def ordinary(level: str) -> tuple:
    return trained(level)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", LEVELS)
def test_every_way_to_bind_a_step_is_the_ordinary_one(level, way):
    found = trained(level, **WAYS[way])
    assert found[1:] == ordinary(level)[1:] and found[2] == 3
    if (level, way) != ("O3", "around torch's fused"):  # which rounds otherwise
        assert not changed(ordinary(level)[0], found[0])


PLACES: dict[str, Step] = {
    "scale_loss": backward,
    "finish": lambda _, optimizer: amp.finish(optimizer),
    "zero_grad": lambda _, optimizer: optimizer.zero_grad(),
    "clip_grad_norm_": lambda _, optimizer: amp.clip_grad_norm_(optimizer, 1.0),
    "clip_grad_value_": lambda _, optimizer: amp.clip_grad_value_(optimizer, 1.0),
    "master_params": lambda _, optimizer: amp.master_params(optimizer),
}


@pytest.mark.parametrize("give", [method, patch], ids=["method", "patch"])
@pytest.mark.parametrize("place", PLACES)
def test_where_a_new_step_is_found(place, give):
    model, optimizer = initialized("O2", new(SGD))
    give(optimizer)
    PLACES[place](model, optimizer)
    optimizer.step()
    assert calls == [torch.float32]
    amp.release(model)


@pytest.mark.parametrize("lead", [nothing, schedule, wrapped], ids=["none", "schedule", "wraps"])
def test_hooks_run_around_a_step_that_leads_to_the_class_s(lead):
    model, optimizer = initialized("O2", after=lead)
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        register(lambda optimizer, *_: calls.append(last(optimizer).dtype))
    backward(model, optimizer)
    optimizer.step()
    assert calls == [torch.float16, torch.float32, torch.float16]
    amp.release(model)


def nesting(params: Any, lr: float) -> Optimizer:
    """One around another, whose own step it calls."""
    optimizer = type("Own", (SGD,), {"step": lambda self: self.inner.step()})(params, lr=lr)
    optimizer.inner = SGD(optimizer.param_groups, lr=lr)
    return optimizer


@pytest.mark.parametrize("give", [method, function, partial], ids=["method", "function", "partial"])
@pytest.mark.parametrize("of", [lambda o: o, lambda o: o.inner], ids=["given", "inner"])
def test_release_gives_the_object_s_own_back(of, give):
    owns: list[Any] = []
    before = lambda optimizer: (give(of(optimizer)), owns.append(of(optimizer).step))  # noqa: E731
    model, optimizer = initialized("O2", nesting, before)
    backward(model, optimizer)
    optimizer.step()
    amp.release(model)
    assert vars(of(optimizer))["step"] == owns[0]
    optimizer.step()
    assert calls == [torch.float32] * 2


class Shy(Ordinary):
    """Tells who looks at it."""

    def __getattr__(self, name: str) -> Any:
        calls.append(name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return calls.append("eq") or self is other

    def __hash__(self) -> int:
        return calls.append("hash") or id(self)


class Early(Ordinary):
    """Its groups and state are there before Optimizer's constructor, and of other types."""

    def __init__(self, params: Any, lr: float) -> None:
        self.param_groups, self.state = list(params), None
        self.name()
        self.param_groups = iter(self.param_groups)
        super().__init__(self.param_groups, lr)


def alone(make: Step, give: Step) -> tuple:
    """What a program that torchamp was never told of gets, and can see."""
    torch.manual_seed(0)
    calls.clear()
    model = linear_net()
    optimizer = make(model.parameters(), lr=0.125)
    schedule(optimizer)
    give(optimizer)
    own = vars(optimizer)["step"]
    for seed in range(3):
        optimizer.zero_grad()
        nets.loss_of(model, seed).backward()
        optimizer.step()
    optimizer.add_param_group({"params": [torch.ones(2)]})
    optimizer.zero_grad(set_to_none=False)
    assert all(param.grad is not None for param in model.parameters())
    assert vars(optimizer)["step"] is own
    values = [value.tolist() for value in everything(model, optimizer).values()]
    return values, [*calls], [*vars(optimizer)]


@pytest.mark.parametrize("give", [nothing, method], ids=["class's", "method"])
@pytest.mark.parametrize("make", [Ordinary, Shy, Early, torchs_fused, FusedSGD])
def test_strangers_are_as_without_amp(make, give):
    """Optimizers of classes that were given, or whose base was."""
    wanted = alone(make, give)
    model, _ = initialized("O2", Ordinary)
    other, _ = initialized("O5", make)
    assert alone(make, give) == wanted
    amp.release(model)
    amp.release(other)
    assert alone(make, give) == wanted


@pytest.mark.filterwarnings("error:Dynamo does not know")
@pytest.mark.parametrize("make", [Ordinary, SGD])
def test_a_compiled_step_of_a_stranger_has_the_graphs_that_it_has_alone(make):
    def graphs(is_known: bool) -> list[str]:
        torch._dynamo.reset()
        found: list[Any] = []
        param = torch.ones(2, requires_grad=True)
        param.grad = torch.ones(2)
        stranger = make([param], lr=0.125)
        if is_known:
            stranger.step()
        compiled = torch.compile(
            lambda: stranger.step(), backend=lambda graph, _: found.append(graph) or graph
        )
        for _ in range(3):
            compiled()
        assert param.tolist() == [1 - 0.125 * (3 + is_known)] * 2
        return [str(graph.graph) for graph in found]

    wanted = graphs(False)
    model, _ = initialized("O2", make)
    assert wanted and graphs(False) == graphs(True) == wanted
    amp.release(model)


@pytest.mark.parametrize("make", [Ordinary, FusedSGD, torchs_fused])
def test_a_stranger_is_looked_up_once_for_each_change(make, monkeypatch):
    asked: list[Any] = []
    owners = _C.owners
    monkeypatch.setattr(_C, "owners", lambda groups: (asked.append(groups), owners(groups))[1])
    model, optimizer = initialized("O2", Ordinary)
    stranger = make([torch.zeros(2, requires_grad=True)], lr=0.125)
    held = optimizer.param_groups[0]["params"]
    changes = [
        lambda: None,
        lambda: initialized("O5", Ordinary),
        functools.partial(stranger.add_param_group, {"params": [torch.ones(2)]}),
        lambda: held.append(torch.ones(2, requires_grad=True)),
        held.pop,
        lambda: None,
    ]
    for change in changes:
        change()
        backward(model, optimizer)
        optimizer.step()
        asked.clear()
        for call in (stranger.step, getattr(stranger, "name", stranger.step)) * 2:
            call()
        assert len(asked) <= 1
    assert asked == [] and id(stranger) in _gate._known
    key = id(stranger)
    del stranger, changes, change, call
    assert key not in _gate._known and key not in _gate._strangers
    amp.release(model)


@pytest.mark.parametrize("change", ["initialize", "groups", "owner"])
@pytest.mark.parametrize("level", MASTER_LEVELS)
def test_a_stranger_that_comes_to_step_masters_finds_them(level, change):
    model, optimizer = initialized(level)
    other, extra = linear_net(), model[0].weight.detach().clone().requires_grad_()
    start = {"initialize": other.parameters(), "groups": [torch.ones(2)], "owner": [extra]}
    late = type("Late", (Optimizer,), {"step": own_step})(start[change], {})
    late.step()
    assert "zero_grad" not in vars(type(late)), "its class was touched"
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


@pytest.mark.parametrize("level", ["O2", "O5"])
def test_one_overflow_skips_a_step_of_the_masters_of_two(level):
    models = [linear_net(), linear_net()]
    owners = [nets.sgd(model) for model in models]
    amp.initialize(models, owners, opt_level=level, loss_scale="dynamic", verbosity=0)
    both = torch.optim.SGD([*models[0].parameters(), *models[1].parameters()], lr=0.1)
    backward(models[0], owners[0])
    with overflow_at(models[1][0].weight):
        backward(models[1], owners[1])
    before = [everything(*each) for each in zip(models, owners)]
    both.step()
    assert not any(map(changed, before, map(everything, models, owners)))
    amp.release(models)

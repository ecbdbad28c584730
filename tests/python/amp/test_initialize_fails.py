"""An initialize that raises has changed nothing, wherever it was."""

import copy
import functools
import pathlib
import sys
import types

import pytest
import torch
from nets import LEVELS, Net, adam, everything, initialized, loss_of, sgd, train_step
from torch import nn

import torchamp
from torchamp import amp, optimizers

PACKAGE = str(pathlib.Path(torchamp.__file__).parent)


class Planted(Exception):
    pass


class RaisesAt:
    """A context in which the `n`-th function of torchamp that initialize calls after its checks
    raises, where there is one."""

    def __init__(self, n: int) -> None:
        self.left, self.is_on = n, False

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def trace(self, frame, event, arg):
        code = frame.f_code
        is_generator = code.co_name == "<genexpr>"  # which may be about to be closed
        if is_generator or not code.co_filename.startswith(PACKAGE) or self.left == 0:
            return
        self.is_on = self.is_on or code.co_name in ("cast_model", "adopt_model")
        self.left -= self.is_on
        if self.is_on and self.left == 0:
            raise Planted


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list:
    """What initialize could change."""
    kinds = ("_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    hooks = [len(getattr(module, kind)) for module in model.modules() for kind in kinds]
    classes = [type(each) for each in (*model.modules(), optimizer)]
    names = [set(vars(each)) for each in (*model.modules(), optimizer)]
    steps = [
        vars(each).get("step") for each in (optimizer, vars(optimizer).get("inner", optimizer))
    ]
    tensors = [*model.parameters(), *model.buffers()]
    params = [(type(group["params"]), *group["params"]) for group in optimizer.param_groups]
    return [
        hooks,
        classes,
        names,
        steps,
        [(tensor.dtype, tensor.grad is None, tensor.data_ptr()) for tensor in tensors],
        [[id(each) for each in group] for group in params],
        {id(param): dict(state) for param, state in optimizer.state.items()},
        torch.is_autocast_enabled("cpu"),
    ]


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return optimizers.FusedAdam(model.parameters(), lr=0.01)


def of_a_new_class(model: nn.Module) -> torch.optim.Optimizer:
    """No initialize has seen it."""

    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:
            for param in self.param_groups[0]["params"]:
                if param.grad is not None:
                    param.sub_(param.grad, alpha=0.125)

        @torch.no_grad()
        def shrink(self) -> None:
            torch._foreach_mul_(self.param_groups[0]["params"], 0.9)

    return Own(model.parameters(), {})


def with_own_steps(model: nn.Module) -> torch.optim.Optimizer:
    """It and the one that it wraps."""
    optimizer = sgd(model)
    optimizer.inner = sgd(model)
    optimizer.inner.step = functools.partial(type(optimizer).step, optimizer.inner)
    optimizer.step = types.MethodType(lambda optimizer: optimizer.inner.step(), optimizer)
    return optimizer


def stepped_before(make):
    def make_stepped(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = make(model)
        loss_of(model).backward()
        optimizer.step()
        optimizer.param_groups[0]["params"] = tuple(optimizer.param_groups[0]["params"])
        return optimizer

    return make_stepped


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    for _ in range(4):
        train_step(model, optimizer)
        if hasattr(optimizer, "shrink"):
            optimizer.shrink()
    return everything(model, optimizer)


@pytest.mark.parametrize("make", [of_a_new_class, with_own_steps, fused, stepped_before(adam)])
@pytest.mark.parametrize(
    "level",
    [pytest.param(level, marks=[pytest.mark.soak] * (level != "O2")) for level in LEVELS],
)
def test_an_exception_anywhere_changes_nothing(level, make):
    model = Net()
    twin = copy.deepcopy(model)
    optimizer, twins = make(model), make(twin)
    before = state_of(model, optimizer)
    for n in range(1, 10_000):
        with RaisesAt(n) as planted:
            try:
                amp.initialize(model, optimizer, opt_level=level, keep_fp32="last", verbosity=0)
                break
            except Planted:
                pass
        assert planted.left == 0 and state_of(model, optimizer) == before, n
    assert n > 10
    expected = trained(*initialized(level, twin, lambda twin: twins, keep_fp32="last"))
    result = trained(model, optimizer)
    assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())
    for each in (model, twin):  # an optimizer with a step of its own is a cycle, which keeps O1
        amp.release(each)


class RefusesClass(Net):
    def __setattr__(self, name, value):
        if name == "__class__":
            raise AttributeError("a frozen class")
        super().__setattr__(name, value)


class RefusesHooks(Net):
    def register_state_dict_post_hook(self, hook):
        raise RuntimeError("no hooks")


class RefusesLoadHooks(Net):
    def __init__(self):
        super().__init__()
        self.last.register_load_state_dict_post_hook = None


class Uncastable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "to":
            raise RuntimeError("no cast")
        return super().__torch_function__(func, types, args, kwargs or {})


class RefusesCasts(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("fixed", torch.ones(3).as_subclass(Uncastable))


FAILING = {
    "class": (RefusesClass, "a frozen class"),
    "hooks": (RefusesHooks, "no hooks"),
    "load hooks": (RefusesLoadHooks, "'NoneType' object is not callable"),
    "casts": (RefusesCasts, "no cast"),
}


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_models_that_refuse(level, case):
    kind, message = FAILING[case]
    model = kind()
    optimizer = sgd(model)
    before = [state_of(model, sgd(model)), vars(optimizer).keys()]
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011
        initialized(level, model, lambda model: optimizer)
    assert str(caught.value) == message
    assert [state_of(model, sgd(model)), vars(optimizer).keys()] == before
    initialized(level, Net())


class HooklessSGD(torch.optim.SGD):
    def register_load_state_dict_pre_hook(self, hook, prepend=False):
        raise AttributeError("no hooks")


def test_another_initialize_works_while_the_exception_lives():
    model = Net()
    try:
        initialized("O2", model, lambda model: HooklessSGD(model.parameters(), lr=0.1))
    except AttributeError as error:
        model, optimizer = initialized("O2", model)
        train_step(model, optimizer)
        assert error


@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_with_a_parameter_twice(level):
    model = Net()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([model.last.bias, *model.parameters()], lr=0.1)
    before = state_of(model, optimizer)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        initialized(level, model, lambda model: optimizer)
    assert str(caught.value) == (
        "initialize: expected each parameter of optimizers[0] once, got one of sizes [3] twice"
    )
    assert state_of(model, optimizer) == before


# Scripted modules.


def scripted_net() -> nn.Module:
    model = Net()
    model.last = torch.jit.script(model.last)
    return model


MESSAGE = (
    "initialize: expected models[0].last to be a Python module, got a RecursiveScriptModule, whose "
    "state dict and calls cannot be cast; pass the module that it was made of, or use O1 or O4 "
    "without keep_fp32 for it"
)


@pytest.mark.parametrize(
    ("level", "kept"), [("O2", ()), ("O3", ()), ("O5", ()), ("O1", "last"), ("O4", "last")]
)
def test_scripted_modules_that_would_be_cast(level, kept):
    model = scripted_net()
    optimizer = sgd(model)
    with pytest.raises(TypeError) as caught:
        initialized(level, model, lambda model: optimizer, keep_fp32=kept)
    assert str(caught.value) == MESSAGE
    initialized(level, Net(), keep_fp32=kept)
    model, optimizer = initialized("O4", model, lambda model: optimizer)
    train_step(model, optimizer)
    amp.release(model)

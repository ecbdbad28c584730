"""Arguments of wrong types, wherever they may be: each error names the function, the argument and
what it got, and none is in the words of pybind11, of C++ or of Python's own internals."""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from nets import initialized, linear_net, sgd

import torchamp
from torchamp import amp, ops

WRONG: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "number": lambda: 3.0,
    "text": lambda: "text",
    "list": lambda: [1],
    "tensor": lambda: torch.ones(3),
    "class": lambda: int,
    "function": lambda: len,
    "model": linear_net,
    "optimizer": lambda: sgd(linear_net()),
}
#: Which give their arguments to torch, whose words they are then.
TORCH_S = ("AveragedModel", "GradScaler", "autocast", "preflight", "report", "fsdp_policy")
#: What a message must look like: the house's form, or Python's for a wrong number of arguments.
FORM = re.compile(
    r"[\w.]+: expected .* got |[\w.]+\(\) (missing|too many|got an unexpected)|"
    r".*\(\) (missing|takes|got an unexpected)|expected .* got ",
    re.DOTALL,
)


def functions() -> Iterator[tuple[str, Callable]]:
    for module in (amp, ops, torchamp):
        for name in module.__all__:
            function = getattr(module, name)
            if callable(function) and name not in (*TORCH_S, "install_as_apex", "Level"):
                yield f"{module.__name__}.{name}", function
    for name, _ in inspect.getmembers(torchamp.LossScaler, inspect.isroutine):
        if not name.startswith("_"):
            yield f"LossScaler.{name}", getattr(torchamp.LossScaler(), name)
    yield "GradScaler.overflowed_params", amp.GradScaler("cpu").overflowed_params
    for name in ("scale_loss", "scale", "save", "load", "load_state_dict"):
        net = linear_net()
        owner = torchamp.Amp(net, sgd(net), "O2", verbosity=0)
        yield f"Amp.{name}", getattr(owner, name)


FUNCTIONS = dict(functions())
#: Who speaks for a function, and the names of arguments there.
SPEAKERS = {
    "Amp": ("initialize", {}),
    "OverflowTrace": ("trace_overflow", {}),
    "LossScaleOptimizer": ("GradScaler", {"init_scale": "initial_scale"}),
}


def check(name: str, given: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            FUNCTIONS[name](*given)
        except OSError:
            pass  # of a text that is taken for a path
        except Exception as error:
            assert FORM.match(str(error)), repr(error)
            assert "incompatible" not in str(error)
            if isinstance(error, TypeError) and not re.search(r"\(\) |argument: ", str(error)):
                check_names_the_argument(name, given, str(error))


def check_names_the_argument(name: str, given: list[Any], message: str) -> None:
    """The function, the argument, and what it got as that."""
    function = name.rpartition(".")[2]
    speaker, names = SPEAKERS.get(function, (function, {}))
    spoken = rf"(?:\w+\.)?(?:{function}|{speaker}): expected "
    of_argument = r"(\w+)(\[0\])?(?:, the \w+ argument,)? to be .*, got (.*)"
    found = re.match(spoken + of_argument, message, re.DOTALL)
    assert found is not None, message
    argument, is_element, got = found.groups()
    place = list(inspect.signature(FUNCTIONS[name]).parameters).index(names.get(argument, argument))
    value = given[place][0] if is_element and isinstance(given[place], list) else given[place]
    shown = (type(value).__name__, repr(value), getattr(value, "__name__", repr(value)))
    assert any(each in got for each in shown), message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_function_lets_others_speak(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = initialized("O2", linear_net(), sgd)
    for count in (0, 1, 2):
        for kinds in itertools.product(WRONG, repeat=count):
            check(name, [WRONG[kind]() for kind in kinds])
    del pair


def arguments_of(op: str) -> dict[str, Any]:
    """Right ones."""
    numbers = dict.fromkeys(("a", "b", "scale"), 1.0)
    scalars = ("inv_scale", "found_inf", "loss_scale")
    right: dict[str, Any] = {
        **numbers,
        **{name: torch.zeros(1) for name in scalars},
        "growth_tracker": torch.zeros(1, dtype=torch.int32),
        **{"accumulate": False, "per_tensor": True, "found_inf_per_tensor": None},
        **{"checked": ops.Check.X, "rule": ops.ScaleRule()},
        **{"scales": torch.ones(1), "dtype": torch.float8_e5m2, "plain": True, "transposed": True},
    }
    parameters = inspect.signature(getattr(ops, op)).parameters
    return {name: right.get(name, [torch.ones(3, 3)]) for name in parameters}


OPS = [name for name in ops.__all__ if name.islower() and name != "fused_step"]
ARGUMENTS = [(op, name) for op in OPS for name in arguments_of(op)]


@pytest.mark.parametrize("op, name", ARGUMENTS)
def test_no_op_lets_others_speak(op, name):
    """And each error is of the argument that is wrong."""
    getattr(ops, op)(**arguments_of(op))
    for kind in WRONG:
        wrong = {**arguments_of(op), name: WRONG[kind]()}
        try:
            getattr(ops, op)(**wrong)
        except Exception as error:
            assert re.match(rf"{op}: expected {name}(\[0\])? to .*, got ", str(error)), repr(error)


@pytest.mark.parametrize("op, name", ARGUMENTS)
def test_a_signature_says_what_may_be_left_out(op, name):
    given = arguments_of(op)
    del given[name]
    if inspect.signature(getattr(ops, op)).parameters[name].default is not inspect.Parameter.empty:
        getattr(ops, op)(**given)
    else:
        with pytest.raises(TypeError, match=rf"^{op}\(\) missing a required argument: '{name}'$"):
            getattr(ops, op)(**given)


def test_signatures_have_defaults():
    parameters = inspect.signature(ops.axpby).parameters
    assert list(parameters) == [
        *("a", "x", "b", "y", "outputs", "found_inf", "checked", "found_inf_per_tensor")
    ]
    assert parameters["checked"].default == ops.Check.BOTH
    assert parameters["found_inf_per_tensor"].default is None
    assert inspect.signature(ops.update_scale).parameters["rule"].default.growth_interval == 2000
    assert inspect.signature(ops.fused_step).parameters["skip"].kind.name == "KEYWORD_ONLY"

"""Functions whose arguments O1 and O4 cast: apex.amp's decorators."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchamp._load import _C

_SIXTEEN_BIT = (torch.float16, torch.bfloat16)
_CASTABLE = (torch.float32, *_SIXTEEN_BIT)
#: torch's, that runs the forward a program wrote; since torch 2.15 it has no Python function.
_APPLY = getattr(torch.autograd.Function.apply, "__func__", None)
#: Of a tensor: the dtype to cast it to.
Choice = Callable[[torch.Tensor], torch.dtype]


def half_function(fn: Callable) -> Callable:
    """`fn` with its floating tensors cast to the 16-bit type of the level wherever that is O1 or
    O4: float16 or bfloat16."""
    return _wrapped(fn, lambda tensors: lambda tensor: _C.casting_to(tensor.device.type))


def bfloat16_function(fn: Callable) -> Callable:
    """`fn` with its floating tensors cast to bfloat16 at O1 and O4."""
    return _wrapped(fn, lambda tensors: lambda tensor: torch.bfloat16)


def float_function(fn: Callable) -> Callable:
    """`fn` with its floating tensors cast to float32 at O1 and O4."""
    return _wrapped(fn, lambda tensors: lambda tensor: torch.float32)


def promote_function(fn: Callable) -> Callable:
    """`fn` with its floating tensors cast to float32 at O1 and O4 where one of them is float32."""
    return _wrapped(fn, _widest)


def _widest(tensors: list[torch.Tensor]) -> Choice:
    has_float32 = any(tensor.dtype == torch.float32 for tensor in tensors)
    return lambda tensor: torch.float32 if has_float32 else tensor.dtype


def _wrapped(fn: Callable, choose: Callable[[list[torch.Tensor]], Choice]) -> Callable:
    """`fn` that casts as `choose` says of its tensors, decided anew at each call."""
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(_wrapped(fn.__func__, choose))
    context = _C.ShieldFromAutocast if calls_no_python(fn) else contextlib.nullcontext

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        tensors = list(castable_tensors((*args, *kwargs.values())))
        if not tensors:
            return fn(*args, **kwargs)
        choice = choose(tensors)
        args = [cast(arg, choice) for arg in args]
        kwargs = {name: cast(arg, choice) for name, arg in kwargs.items()}
        with context():
            return fn(*args, **kwargs)

    return wrapper


def calls_no_python(fn: Callable) -> bool:
    """Whether `fn` is torch's or written in C++: what it calls is not cast once more. In functions
    of the program's own, O1 casts as everywhere."""
    owner = getattr(fn, "__self__", None)
    if fn is _APPLY or (isinstance(owner, type) and issubclass(owner, torch.autograd.Function)):
        return False
    if inspect.isbuiltin(fn) or inspect.ismethoddescriptor(fn):
        return True
    if not inspect.isroutine(fn):
        return type(fn).__module__ == "torch._ops"
    return (getattr(fn, "__module__", None) or "").split(".")[0] == "torch"


def is_castable(value: Any) -> bool:
    """Whether `value` is a tensor that O1 or O4 casts in this thread: on a device type of theirs,
    float32 or 16 bit."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in _CASTABLE
        and _C.casting_to(value.device.type) is not None
    )


def castable_tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors that cast() changes, of a list or tuple."""
    for value in values:
        if is_castable(value):
            yield value
        elif _is_all_floating(value):
            yield from castable_tensors(value)


def cast(value: Any, choice: Choice) -> Any:
    """`value` cast if it is a castable tensor, or a list or tuple, nested or not, of nothing but
    floating tensors; else as it is."""
    if is_castable(value):
        return value.to(choice(value))
    if not _is_all_floating(value):
        return value
    elements = [cast(element, choice) for element in value]
    return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)


def _is_all_floating(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        _is_all_floating(element)
        or (isinstance(element, torch.Tensor) and element.is_floating_point())
        for element in value
    )

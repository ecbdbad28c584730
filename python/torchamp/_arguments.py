"""Checks of the types of arguments, and what functions say of a wrong one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


def expect(
    is_right: bool, function: str, argument: str, what: str, value: Any, remedy: str = ""
) -> None:
    """Raises TypeError, which names all of them, unless `is_right`."""
    if not is_right:
        kinds = torch.nn.Module, torch.optim.Optimizer
        if isinstance(value, type) and issubclass(value, kinds):
            remedy = remedy or "pass an object of it"
        got = f"{type_of(value)}{'; ' if remedy else ''}{remedy}"
        raise TypeError(f"{function}: expected {argument} to be {what}, got {got}")


def takes(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether `function`, or a module, can be called with these; True where it does not show it."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of some functions of C
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A message's end, which names the one of `known` that is most alike; empty if none is."""
    alike = difflib.get_close_matches(name, list(filter(None, known)), 1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def hint_on(wrong: str, known: Iterable[str], instead: Mapping[str, str]) -> str:
    """The end of a message that refuses a keyword which is not `known`. instead: by such names,
    the known one that is meant, or a remedy."""
    meant = instead.get(wrong, wrong)
    return f"; {meant}" if " " in meant else did_you_mean(meant, known)


def with_hints(
    name: str, instead: Mapping[str, str], like: Callable | None = None
) -> Callable[[Function], Function]:
    """A decorator: errors about keywords that a function lacks call it `name`, and have a hint_on
    them. like: the function that has its keywords; None: itself."""

    def decorate(function: Function) -> Function:
        known = inspect.signature(like or function).parameters

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for wrong in [each for each in kwargs if each not in known]:
                hint = hint_on(wrong, known, instead)
                raise TypeError(f"{name}() got an unexpected keyword argument {wrong!r}{hint}")
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def type_of(value: Any) -> str:
    """The type's name with an article: "a float", "an SGD"; of a class, "the class SGD"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    spelt = name[1:2].isupper()  # letter by letter
    return f"{'an' if name[0] in ('AEFHILMNORSX' if spelt else 'AEIOUaeiou') else 'a'} {name}"


def listed(function: str, name: str, values: Any) -> list:
    """Models or optimizers, or one, as a list. Raises TypeError, which names the function and the
    argument, for a tensor and for what cannot be iterated over."""
    if isinstance(values, (torch.nn.Module, torch.optim.Optimizer)):
        return [values]
    is_right = isinstance(values, Iterable) and not isinstance(values, torch.Tensor)
    expect(is_right, function, name, "one of them or a list", values)
    return list(values)


def uncompiled(value: Any) -> Any:
    """The model that torch.compile was given; anything else itself."""
    return getattr(value, "_orig_mod", value)


def module_of(function: str, model: Any, name: str = "model") -> torch.nn.Module:
    """`model` without torch.compile. Raises TypeError, which names `function` and the argument,
    unless it is a module."""
    expect(isinstance(model, torch.nn.Module), function, name, "a torch.nn.Module", model)
    return uncompiled(model)


def is_number(value: Any) -> bool:
    """Whether float() takes it, and it is no text: a tensor of several elements is no number."""
    try:
        float(value)
    except Exception:  # of which kind is the value's choice
        return False
    return not isinstance(value, (str, bytes, bytearray))


def is_boolean(value: Any) -> bool:
    """Whether it equals True or False."""
    try:
        return bool(value in (True, False))
    except Exception:  # a tensor or an array of several elements
        return False

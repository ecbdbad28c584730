"""Stage 7: which of a step's arguments is its closure. All others are passed on as they are."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any, Union

import torch

#: A keyword, or a place among the positional arguments, of which the optimizer is the first.
Place = Union[str, int]

#: By step, the place that closures have in its signature, and whether the argument is `closure`.
_places: weakref.WeakKeyDictionary[Callable, tuple[int, bool]] = weakref.WeakKeyDictionary()


def closure_of(call: functools.partial) -> tuple[Place, Callable[..., Any]] | None:
    """The closure in a call of a step, and its place; None if there is none."""
    if callable(named := call.keywords.get("closure")):
        return "closure", named
    if not any(map(callable, call.args[1:])):
        return None
    if call.func not in _places:
        _places[call.func] = _place_in(call.func)
    place, is_named = _places[call.func]
    value = call.args[place] if place < len(call.args) else None
    is_data = isinstance(value, (torch.nn.Module, torch.Tensor, type)) and not is_named
    return (place, value) if callable(value) and not is_data else None


def _place_in(step: Callable) -> tuple[int, bool]:
    """The place of the argument `closure`, or of the first where there is only `*args`."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return 1, False
    for i, parameter in enumerate(parameters):
        if parameter.name == "closure":
            return i, True
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return (1 if i <= 1 else sys.maxsize), False
    return sys.maxsize, False


def with_closure(closure: Any, place: Place, call: functools.partial) -> functools.partial:
    """The call with another closure in its place."""
    args, keywords = list(call.args), dict(call.keywords)
    if isinstance(place, str):
        keywords[place] = closure
    else:
        args[place] = closure
    return functools.partial(call.func, *args, **keywords)

"""Stage 7: which of a step's arguments is its closure. All others are passed on as they are."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import torch

#: A keyword, or a place among the positional arguments, of which the optimizer is the first.
Place = Union[str, int]


class _Place(NamedTuple):
    index: int
    is_named: bool


_places: weakref.WeakKeyDictionary[Callable, _Place | None] = weakref.WeakKeyDictionary()


def place_of_closure(call: functools.partial) -> Place | None:
    """Where a call of a step has its closure; None if it has none."""
    if callable(call.keywords.get("closure")):
        return "closure"
    if not any(map(callable, call.args[1:])):
        return None
    if call.func not in _places:
        _places[call.func] = _place_in(call.func)
    place = _places[call.func]
    if place is None or place.index >= len(call.args):
        return None
    value = call.args[place.index]
    is_data = isinstance(value, (torch.nn.Module, torch.Tensor, type)) and not place.is_named
    return place.index if callable(value) and not is_data else None


def _place_in(step: Callable) -> _Place | None:
    """That of the argument `closure`, or of the first in a signature of `*args` alone."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return _Place(1, is_named=False)
    for i, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return _Place(1, is_named=False) if i <= 1 else None
        if parameter.name == "closure":
            return _Place(i, is_named=True)
    return None


def closure_at(place: Place, call: functools.partial) -> Callable[..., Any]:
    return call.keywords[place] if isinstance(place, str) else call.args[place]


def with_closure(closure: Any, place: Place, call: functools.partial) -> functools.partial:
    """The call with another closure in its place."""
    args, keywords = list(call.args), dict(call.keywords)
    if isinstance(place, str):
        keywords[place] = closure
    else:
        args[place] = closure
    return functools.partial(call.func, *args, **keywords)

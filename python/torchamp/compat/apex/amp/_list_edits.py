"""What a program has changed in apex.amp.lists, as functions that it registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchamp.amp import float_function, half_function, promote_function
from torchamp.amp._casts.autocast import OPEN, Ban, Patch, shield
from torchamp.compat.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides


def _plain_function(fn: Callable) -> Callable:
    """`fn` that O1 does not cast."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with shield():
            return fn(*args, **kwargs)

    return wrapper


#: The wrappers by list. The first list that has a name counts.
_WRAPPERS = {
    "FP16_FUNCS": half_function,
    "FP32_FUNCS": float_function,
    "CASTS": promote_function,
    "SEQUENCE_CASTS": promote_function,
}
_MODULES = (functional_overrides, torch_overrides, tensor_overrides)


def _wrappers_of(lists: ModuleType) -> dict[str, Callable]:
    """How the lists of a module say to wrap each function."""
    wrappers: dict[str, Callable] = {}
    for name, wrap in _WRAPPERS.items():
        for function in getattr(lists, name, ()):
            wrappers.setdefault(function, wrap)
    return wrappers


#: The lists as they were when they were followed last.
_followed = {lists: _wrappers_of(lists) for lists in _MODULES}


def follow_list_edits() -> None:
    """Makes O1 cast by the lists as they are now."""
    for lists, before in _followed.items():
        now = _wrappers_of(lists)
        for name in now.keys() | before.keys():
            wrap = now.get(name, _plain_function)
            if wrap is not before.get(name):
                OPEN.add(Patch(lists.MODULE, name, wrap))
        before.clear()
        before.update(now)
    if not functional_overrides.BANNED_FUNCS:
        Ban.is_lifted = True

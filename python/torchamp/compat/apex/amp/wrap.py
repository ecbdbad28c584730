"""apex.amp.wrap: functions whose arguments are cast while a handle is active."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchamp.compat.apex.amp.utils import (
    casted_args,
    collect_fp_tensor_types,
    get_func,
    has_func,
    maybe_float,
    set_func_save,
)

__all__ = ["cached_cast", "make_cast_wrapper", "make_promote_wrapper", "promote"]


def make_cast_wrapper(
    orig_fn: Callable, cast_fn: Callable, handle: Any, try_caching: bool = False
) -> Callable:
    """`orig_fn` with `cast_fn` of its floating arguments while `handle` is active. try_caching:
    accepted; weights are cast at each use."""

    @functools.wraps(orig_fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if handle.is_active():
            args = tuple(casted_args(cast_fn, args, kwargs))
        return orig_fn(*args, **kwargs)

    return wrapper


def make_promote_wrapper(
    orig_fn: Callable, cast_fn: Callable | None, handle: Any = None
) -> Callable:
    """`orig_fn` with `cast_fn`, by default maybe_float, of its floating arguments where they are
    float16 and float32, and `handle`, if there is one, is active."""

    @functools.wraps(orig_fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        types = set(collect_fp_tensor_types(args, kwargs))
        is_active = handle is None or handle.is_active()
        if is_active and types == {"HalfTensor", "FloatTensor"}:
            args = tuple(casted_args(cast_fn or maybe_float, args, kwargs))
        return orig_fn(*args, **kwargs)

    return wrapper


def cached_cast(
    mod: Any,
    fn: str,
    cast_fn: Callable,
    handle: Any,
    try_caching: bool = False,
    verbose: bool = False,
) -> None:
    """Makes `mod.fn` a make_cast_wrapper until the handle's _deactivate(). Does nothing where `mod`
    has none."""
    if has_func(mod, fn):
        set_func_save(
            handle, mod, fn, make_cast_wrapper(get_func(mod, fn), cast_fn, handle, try_caching)
        )


def promote(mod: Any, fn: str, handle: Any, verbose: bool = False) -> None:
    """Makes `mod.fn` a make_promote_wrapper until the handle's _deactivate()."""
    wrapper = make_promote_wrapper(get_func(mod, fn), maybe_float, handle)
    set_func_save(handle, mod, fn, wrapper)

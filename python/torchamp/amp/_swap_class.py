"""Adds methods to one object, by a subclass of its class that has the same name.

A method bound to the object itself would make a reference cycle, would not pickle, and under
DataParallel would run every replica on the original.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, SupportsIndex


class Swapped:
    """Comes before the user's class in the method resolution order of the subclasses."""

    #: The user's class.
    _torchamp_original: type

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        """Makes pickle and copy return an object of the user's class."""
        # Of protocol 2 on, pickle insists on the object's own class; protocol 1 takes any.
        reduced: Any = super().__reduce_ex__(1)
        function, args, *rest = reduced
        original = self._torchamp_original
        return function, tuple(original if arg is type(self) else arg for arg in args), *rest

    def __init_subclass__(cls) -> None:
        """Hides the subclass from the user's own __init_subclass__, which may keep a register."""


_subclasses: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def swap_class(instance: Any, mixin: type[Swapped], methods: Callable[[Any], dict]) -> None:
    """Makes `instance` a `mixin`, and adds `methods(type(instance))`."""
    original = type(instance)
    known = _subclasses.get(original, lambda: None)()
    subclass = known or _make_subclass(original, mixin, methods(original))
    _subclasses[original] = weakref.ref(subclass)
    instance.__class__ = subclass


def is_as_swapped(instance: Swapped) -> bool:
    """Whether the class that swap_class gave it is still its own, and not a base of it."""
    return "_torchamp_original" in vars(type(instance))


def restore_class(instance: Swapped) -> None:
    """Undoes swap_class."""
    instance.__class__ = instance._torchamp_original


def _make_subclass(original: type, mixin: type[Swapped], methods: dict) -> type:
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_torchamp_original": original,
        **methods,
    }
    return type(original)(original.__name__, (mixin, original), namespace)

"""Adds methods to one object, by a subclass of its class that has the same name, and takes them
from it and from its copies again.

A method bound to the object itself would make a reference cycle, would not pickle, and under
DataParallel would run every replica on the original.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import types
import typing
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, SupportsIndex

import torch

from torchamp.amp._casts.masters import may_be_cast
from torchamp.amp._model.state_dict import float32_of, unhook_state_dict


class SwappedType(type):
    """The type of the subclasses. Objects and classes that a program makes by `type(x)` are made by
    the user's class. `type(x) == UsersClass` is false: torch.compile finds super() by it."""

    _torchamp_original: type

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict, **options: Any) -> Any:
        """What a program derives, it derives from the user's class."""
        bases = tuple(vars(base).get("_torchamp_original", base) for base in bases)
        return types.new_class(name, bases, options, lambda own: own.update(namespace))

    def mro(cls) -> list[type]:
        """The mixin first. It is the last of the bases, because Python takes the layout of objects
        from the first: that of the user's class, which it compares when a class is assigned."""
        if "_torchamp_original" not in vars(cls):
            return super().mro()
        original, mixin = cls.__bases__
        own = [base for base in mixin.__mro__ if base not in original.__mro__]
        return [cls, *own, *original.__mro__]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._torchamp_original(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._torchamp_original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._torchamp_original)


class Swapped:
    """Comes before the user's class in the method resolution order of the subclasses."""

    #: The user's class.
    _torchamp_original: type

    @staticmethod
    def _torchamp_methods(original: Any) -> dict[str, Any]:
        """The methods of the subclass of `original`, the user's class, that know it."""
        return {}

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        """Makes pickle and copy return an object of the user's class."""
        # Of protocol 2 on, pickle insists on the object's own class; protocol 1 takes any.
        reduced: Any = super().__reduce_ex__(1)
        function, args, *rest = reduced
        original = self._torchamp_original
        return function, tuple(original if arg is type(self) else arg for arg in args), *rest

    def __copy__(self) -> Any:
        """Shares all that the original holds, and is in training."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __init_subclass__(cls) -> None:
        """Hides the subclass from the user's own __init_subclass__, which may keep a register."""


class BoundForward:
    """What a program has bound to a model as `forward`, called as the class's is."""

    __wrapped__: Callable

    def __init__(self, forward: Callable, state: Any) -> None:
        functools.update_wrapper(self, forward)
        self._state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._state.call(self.__wrapped__, args, kwargs)


def unbind_forward(model: torch.nn.Module) -> None:
    """Makes a BoundForward of `model` what the program has bound."""
    forward = vars(model).get("forward")
    if isinstance(forward, BoundForward):
        vars(model)["forward"] = forward.__wrapped__


_subclasses: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def swap_class(instance: Any, mixin: type[Swapped]) -> None:
    """Makes `instance` a `mixin`."""
    original = type(instance)
    known = _subclasses.get(original, lambda: None)()
    subclass = known or _make_subclass(original, mixin)
    _subclasses[original] = weakref.ref(subclass)
    instance.__class__ = subclass


def remade(mixin: type[Swapped], function: Callable, args: tuple) -> Any:
    """An object that a user's class reduced to `function` and `args`, as a `mixin`."""
    instance = function(*args)
    swap_class(instance, mixin)
    return instance


def is_as_swapped(instance: Swapped) -> bool:
    """Whether the class that swap_class gave it is still its own, and not a base of it."""
    return "_torchamp_original" in vars(type(instance))


@functools.cache
def _type_of(metaclass: type) -> type:
    """A SwappedType that is a `metaclass` too."""
    bases = (SwappedType,) if metaclass is type else (SwappedType, metaclass)
    kind: Any = type(metaclass)(metaclass.__name__, bases, {})
    copyreg.pickle(kind, lambda subclass: (typing.cast, (None, subclass._torchamp_original)))
    return kind


def _make_subclass(original: type, mixin: type[Swapped]) -> type:
    """Bypasses the user's metaclass, which may raise or keep a register."""
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "_torchamp_original": original,
        **mixin._torchamp_methods(original),
    }
    bases = (original, mixin)
    return type.__new__(_type_of(type(original)), original.__name__, bases, namespace)


class PlainState(NamedTuple):
    """The state of a model or an optimizer, of which copy and pickle make a plain one."""

    own: Any
    #: Tensors of the model, and their float32 values.
    values: list[tuple[torch.Tensor, torch.Tensor]]

    def __deepcopy__(self, memo: dict[int, Any]) -> PlainState:
        """Takes the values, which nobody else has."""
        own = copy.deepcopy(self.own, memo)
        return PlainState(own, [(copy.deepcopy(t, memo), value) for t, value in self.values])

    def set(self, set_own: Callable) -> None:
        if self.own is not None:
            set_own(self.own)
        for tensor, value in self.values:
            tensor.data = value


def plain_state(own: Any, tensors: Iterable[torch.Tensor], cast_to: Any) -> PlainState:
    """own: as the user's class gives it. cast_to: what initialize has made of `tensors`."""
    cast = (tensor for tensor in tensors if tensor.dtype == cast_to and may_be_cast(tensor))
    return PlainState(own, [(each, float32_of(each, each.detach())) for each in cast])


def make_plain(model: torch.nn.Module) -> None:
    """Makes `model`, a copy of one in training, the user's own."""
    unhook_state_dict(model)
    restore(module for module in model.modules() if isinstance(module, Swapped))


def restore(models: Iterable[Any]) -> None:
    """Gives each its class and its forward back."""
    for model in list(models):
        vars(model).pop("_torchamp", None)
        model.__class__ = model._torchamp_original
        unbind_forward(model)
        for module in model.modules():
            if isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()

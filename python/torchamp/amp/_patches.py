"""Attributes of modules and classes that are something else while O1 or O4 is open somewhere."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from torchamp._load import _C
from torchamp.amp import _functions


@dataclasses.dataclass
class Patch:
    """`owner.name` as `wrap` makes it of what stands there, until undo()."""

    owner: Any
    name: str
    wrap: Callable[[Callable], Callable]
    _before: Any = None
    _after: Any = None
    #: Whether `owner` has the attribute itself, and not from a base class or its class.
    _is_own: bool = False

    def apply(self) -> None:
        """Does nothing where `owner` has no such attribute."""
        if not hasattr(self.owner, self.name):
            return
        self._is_own = self.name in vars(self.owner)
        self._before = inspect.getattr_static(self.owner, self.name)
        self._after = self.wrap(self._value())
        setattr(self.owner, self.name, self._after)

    def _value(self) -> Any:
        """What stands there, of a class with the class still to be bound."""
        is_class = isinstance(self.owner, type)
        if is_class and isinstance(self._before, (staticmethod, classmethod)):
            return self._before
        if is_class and isinstance(self._before, types.ClassMethodDescriptorType):
            before = self._before
            return classmethod(lambda cls, *args, **kw: before.__get__(None, cls)(*args, **kw))
        return getattr(self.owner, self.name)

    def undo(self) -> None:
        """Leaves alone what somebody else has put in its place."""
        if self._after is None or vars(self.owner).get(self.name) is not self._after:
            return
        if self._is_own:
            setattr(self.owner, self.name, self._before)
        else:
            delattr(self.owner, self.name)
        self._after = None


class Patches:
    """Patches that stand while someone holds them."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self._holders = 0
        self._lock = threading.RLock()

    def add(self, patch: Patch) -> None:
        """Puts `patch` in the place of one of the same attribute."""
        with self._lock:
            for known in self._patches:
                if known.owner is patch.owner and known.name == patch.name:
                    known.undo()
                    self._patches.remove(known)
                    break
            self._patches.append(patch)
            if self._holders:
                patch.apply()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                for patch in self._patches:
                    patch.apply()

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                for patch in reversed(self._patches):
                    patch.undo()


def _register(function: str, wrap: Callable, module: Any, name: str) -> None:
    if not hasattr(module, name):
        raise ValueError(f"{function}: expected the name of a function in {module!r}, got {name!r}")
    OPEN.add(Patch(module, name, wrap))


def register_half_function(module: Any, name: str) -> None:
    """Makes `module.name` a half_function while O1 or O4 is open: a function or method of a
    module, a class or any other object. Raises ValueError where there is none of that name."""
    _register("register_half_function", _functions.half_function, module, name)


def register_bfloat16_function(module: Any, name: str) -> None:
    """As register_half_function, in bfloat16 at every level."""
    _register("register_bfloat16_function", _functions.bfloat16_function, module, name)


def register_float_function(module: Any, name: str) -> None:
    """As register_half_function, in float32."""
    _register("register_float_function", _functions.float_function, module, name)


def register_promote_function(module: Any, name: str) -> None:
    """As register_half_function, in float32 where one of the arguments is."""
    _register("register_promote_function", _functions.promote_function, module, name)


def _banned(fn: Callable) -> Callable:
    in_float32 = _functions.float_function(fn)

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        tensors = _functions.castable_tensors((*args, *kwargs.values()))
        if not Ban.is_lifted and any(tensor.dtype != torch.float32 for tensor in tensors):
            raise NotImplementedError(_BANNED)
        return in_float32(*args, **kwargs)

    return wrapper


_BANNED = (
    "binary_cross_entropy: expected float32 tensors, got 16-bit ones, whose gradients may overflow "
    "under O1 and O4; leave out the sigmoid before it and use binary_cross_entropy_with_logits "
    "(BCEWithLogitsLoss), or cast its arguments to float32"
)


class Ban:
    """Whether functions that are banned for 16-bit tensors run in float32 instead."""

    is_lifted = False


def _cast_in_backward(fn: Callable) -> Callable:
    """For what autograd calls to run a Python function's backward, which O1 casts as its forward;
    nothing else of a backward is cast."""

    @functools.wraps(fn)
    def wrapper(self, *args):
        with _C.CastInBackward():
            return fn(self, *args)

    return wrapper


_BackwardCFunction = torch.autograd.function.BackwardCFunction

#: Those of O1 and O4.
OPEN = Patches(
    [
        Patch(torch.nn.functional, "binary_cross_entropy", _banned),
        Patch(_BackwardCFunction, "apply", _cast_in_backward),
        Patch(_BackwardCFunction, "apply_boxed", _cast_in_backward),
    ]
)

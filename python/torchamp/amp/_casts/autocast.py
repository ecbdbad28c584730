"""What O1 and O4 cast: decorators, functions that a program registers, the scope in which they are
open; and torch's autocast, for programs that cast by themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
import torch._functorch.config

from torchamp._arguments import expect
from torchamp._in_graphs import Function, constant_in_graphs
from torchamp._load import _C, __version__
from torchamp._logging import warn

_SIXTEEN_BIT = (torch.float16, torch.bfloat16)
_CASTABLE = (torch.float32, *_SIXTEEN_BIT)
#: torch's, that runs the forward a program wrote; since torch 2.15 it has no Python function.
_APPLY = getattr(torch.autograd.Function.apply, "__func__", None)
#: Gives the dtype to cast a tensor to.
Choice = Callable[[torch.Tensor], Optional[torch.dtype]]


def half_function(fn: Function) -> Function:
    """Returns `fn` with its floating tensors cast to the 16-bit type of the level, float16 or
    bfloat16, wherever that is O1 or O4."""
    return _wrapped(
        "half_function", fn, lambda tensors: lambda tensor: _C.casting_to(tensor.device.type)
    )


def bfloat16_function(fn: Function) -> Function:
    """Returns `fn` with its floating tensors cast to bfloat16 at O1 and O4."""
    return _wrapped("bfloat16_function", fn, lambda tensors: lambda tensor: torch.bfloat16)


def float_function(fn: Function) -> Function:
    """Returns `fn` with its floating tensors cast to float32 at O1 and O4."""
    return _wrapped("float_function", fn, lambda tensors: lambda tensor: torch.float32)


def promote_function(fn: Function) -> Function:
    """Returns `fn` with its floating tensors cast to float32 at O1 and O4 where one of them is
    float32."""
    return _wrapped("promote_function", fn, _widest)


def _widest(tensors: list[torch.Tensor]) -> Choice:
    has_float32 = any(tensor.dtype == torch.float32 for tensor in tensors)
    return lambda tensor: torch.float32 if has_float32 else tensor.dtype


def _wrapped(name: str, fn: Any, choose: Callable[[list[torch.Tensor]], Choice]) -> Any:
    """`fn` that casts as `choose` says of its tensors, decided at each call. `name` is the
    decorator's, for errors."""
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(_wrapped(name, fn.__func__, choose))
    expect(callable(fn), name, "fn", "a function", fn)
    context = _C.ShieldFromAutocast if _calls_no_python(fn) else contextlib.nullcontext

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tensors = list(_castable_tensors((*args, *kwargs.values())))
        if not tensors:
            return fn(*args, **kwargs)
        choice = choose(tensors)
        args = tuple(_cast(arg, choice) for arg in args)
        kwargs = {name: _cast(arg, choice) for name, arg in kwargs.items()}
        with context():
            return fn(*args, **kwargs)

    return wrapper


def _calls_no_python(fn: Callable) -> bool:
    """Whether `fn` is torch's or written in C++: what it calls is not cast once more. In functions
    of the program, O1 casts as usual."""
    owner = getattr(fn, "__self__", None)
    if fn is _APPLY or (isinstance(owner, type) and issubclass(owner, torch.autograd.Function)):
        return False
    if inspect.isbuiltin(fn) or inspect.ismethoddescriptor(fn):
        return True
    if not inspect.isroutine(fn):
        return type(fn).__module__ == "torch._ops"
    return (getattr(fn, "__module__", None) or "").split(".")[0] == "torch"


def _is_castable(value: Any) -> bool:
    """Whether `value` is a tensor that O1 or O4 casts in this thread: on a device type of theirs,
    float32 or 16 bit."""
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in _CASTABLE
        and _C.casting_to(value.device.type) is not None
    )


def _castable_tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors that _cast() changes, of a list or tuple."""
    for value in values:
        if _is_castable(value):
            yield value
        elif _is_all_floating(value):
            yield from _castable_tensors(value)


def _cast(value: Any, choice: Choice) -> Any:
    """`value` cast if it is a castable tensor, or a list or tuple, nested or not, of nothing but
    floating tensors; else as it is."""
    if _is_castable(value):
        return value.to(dtype=choice(value))
    if not _is_all_floating(value):
        return value
    elements = [_cast(element, choice) for element in value]
    return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)


def _is_all_floating(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        _is_all_floating(element)
        or (isinstance(element, torch.Tensor) and element.is_floating_point())
        for element in value
    )


@dataclasses.dataclass
class Patch:
    """Replaces `owner.name` by `wrap` of its value, until undo()."""

    owner: Any
    name: str
    wrap: Callable[[Callable], Callable]
    _before: Any = None
    _after: Any = None
    #: Whether `owner` has the attribute itself, and not from a base class or its class.
    _is_own: bool = False

    def __str__(self) -> str:
        owner = getattr(self.owner, "__qualname__", getattr(self.owner, "__name__", None))
        return f"{owner or type(self.owner).__qualname__}.{self.name}: {self.wrap.__name__}"

    def apply(self) -> None:
        """Does nothing where `owner` has no such attribute."""
        if not hasattr(self.owner, self.name):
            return
        self._is_own = self.name in vars(self.owner)
        self._before = inspect.getattr_static(self.owner, self.name)
        self._after = self.wrap(self._value())
        setattr(self.owner, self.name, self._after)

    def _value(self) -> Any:
        """Its current value; of a class, not yet bound to it."""
        is_class = isinstance(self.owner, type)
        if is_class and isinstance(self._before, (staticmethod, classmethod)):
            return self._before
        if is_class and isinstance(self._before, types.ClassMethodDescriptorType):
            before = self._before
            return classmethod(lambda cls, *args, **kw: before.__get__(None, cls)(*args, **kw))
        return getattr(self.owner, self.name)

    def undo(self) -> None:
        """Keeps a value that other code has set since."""
        if self._after is None or vars(self.owner).get(self.name) is not self._after:
            return
        if self._is_own:
            setattr(self.owner, self.name, self._before)
        else:
            delattr(self.owner, self.name)
        self._after = None


class Patches:
    """Patches that stay active while something holds them."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self._holders = 0
        self._lock = threading.RLock()

    def __str__(self) -> str:
        """What is patched, and how: the same in every process."""
        with self._lock:
            return ", ".join(sorted(map(str, self._patches)))

    def add(self, patch: Patch) -> None:
        """Replaces the patch of the same attribute by `patch`."""
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
    expect(isinstance(name, str), function, "name", "text", name)
    what, remedy = "a module, a class or another object", "pass what it names"
    expect(not isinstance(module, str), function, "module", what, module, remedy)
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{function}: expected the name of a function in {module!r}, got {name!r}")
    OPEN.add(Patch(module, name, wrap))


def register_half_function(module: Any, name: str) -> None:
    """Makes `module.name` a half_function while O1 or O4 is open.

    Args:
        module: a module, a class or any other object.
        name: of a function or method of it.

    Raises:
        TypeError: for a name in place of the module.
        ValueError: where there is none of that name.
    """
    _register("register_half_function", half_function, module, name)


def register_bfloat16_function(module: Any, name: str) -> None:
    """Does what register_half_function does, in bfloat16 at every level."""
    _register("register_bfloat16_function", bfloat16_function, module, name)


def register_float_function(module: Any, name: str) -> None:
    """Does what register_half_function does, in float32."""
    _register("register_float_function", float_function, module, name)


def register_promote_function(module: Any, name: str) -> None:
    """Does what register_half_function does, in float32 where one of the arguments is."""
    _register("register_promote_function", promote_function, module, name)


def _banned(fn: Callable) -> Callable:
    in_float32 = float_function(fn)

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        tensors = _castable_tensors((*args, *kwargs.values()))
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


def _shielded_engine(run: Callable) -> Callable:
    """Autograd's engine, which casts nothing in a backward: it computes in the forward's dtypes."""

    @functools.wraps(run)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with shield() if torch.compiler.is_compiling() else _C.ShieldBackward():
            return run(*args, **kwargs)

    return wrapper


def _captures_casts(init: Callable) -> Callable:
    """A Python function's node, made where its forward runs."""

    @functools.wraps(init)
    def wrapper(self: Any) -> None:
        init(self)
        self._torchamp_casts = _C.captured_autocast()

    return wrapper


def _cast_as_forward(fn: Callable) -> Callable:
    """Runs `fn`, which autograd calls to run a Python function's backward, under the forward's
    casts."""

    @functools.wraps(fn)
    def wrapper(self: Any, *args: Any) -> Any:
        with getattr(self, "_torchamp_casts", None) or contextlib.nullcontext():
            return fn(self, *args)

    return wrapper


def _keyed_by_casts(save: Callable) -> Callable:
    """AOTAutograd's pickled settings, a part of the keys of torch.compile's cache on disk, which
    do not tell these casts from torch.autocast's. Unpickling ignores what is added."""

    @functools.wraps(save)
    def wrapper(self: Any) -> bytes:
        supported = torch._C._autocast_supported_devices()
        casts = {each: dtype for each in supported if (dtype := _C.casting_to(each))}
        own = f"torchamp {__version__}, {casts}, {OPEN}" if casts else ""
        return save(self) + own.encode()

    return wrapper


_BackwardCFunction = torch.autograd.function.BackwardCFunction

#: The patches of O1 and O4.
OPEN = Patches(
    [
        Patch(torch.nn.functional, "binary_cross_entropy", _banned),
        Patch(torch.nn.functional, "local_response_norm", float_function),
        Patch(torch.autograd, "_engine_run_backward", _shielded_engine),
        Patch(_BackwardCFunction, "__init__", _captures_casts),
        Patch(_BackwardCFunction, "apply", _cast_as_forward),
        Patch(_BackwardCFunction, "apply_boxed", _cast_as_forward),
        Patch(type(torch._functorch.config), "save_config", _keyed_by_casts),
    ]
)


def shield() -> contextlib.AbstractContextManager[None]:
    """A context that suspends O1's casts in this thread, but not a torch.autocast of the program;
    torch.compile and torch.export capture it."""
    if torch.compiler.is_compiling():
        return _without_autocast(_shielded_device_types())
    return _C.ShieldFromAutocast()


def _without_autocast(device_types: list[str]) -> contextlib.AbstractContextManager[None]:
    """No generator for one type or none: Dynamo of torch 2.6 traces none."""
    if not device_types:
        return contextlib.nullcontext()
    first, *others = device_types
    off = torch.autocast(first, enabled=False)
    return _both(off, _without_autocast(others)) if others else off


@contextlib.contextmanager
def _both(
    first: contextlib.AbstractContextManager[None], second: contextlib.AbstractContextManager[None]
) -> Iterator[None]:
    with first, second:
        yield


@constant_in_graphs
def _shielded_device_types() -> list[str]:
    """The device types, a constant while a graph is captured: under another state of autocast,
    Dynamo captures another graph."""
    return _C.shielded_device_types()


def autocast_around(dtype: torch.dtype, device_type: str) -> str:
    """What to tell of a torch.autocast of the program around a model cast to `dtype`; empty where
    there is none, or casts of O1 and O4 alone."""
    supported = torch._C._autocast_supported_devices()
    if device_type not in supported or not torch.is_autocast_enabled(device_type):
        return ""
    if device_type in _C.shielded_device_types():
        return ""
    return (
        f"forward: expected no torch.autocast around a model that initialize has cast to {dtype}, "
        f"got one to {torch.get_autocast_dtype(device_type)}, which casts its ops again; leave "
        "torch.autocast out"
    )


@constant_in_graphs
def warn_of_autocast(dtype: torch.dtype, device_type: str) -> bool:
    """Whether it has: once a graph where one is captured."""
    text = autocast_around(dtype, device_type)
    if text:
        warn(text)
    return bool(text)


def lasting_casts(wanted: torch.dtype | None = None) -> set[torch.dtype]:
    """The dtypes, one at most, that O1 and O4 cast to in this thread, once models that only
    reference cycles hold are gone. Leaves those be where it is `wanted`."""
    if _open_casts() - {wanted}:
        gc.collect()
    return _open_casts()


def _open_casts() -> set[torch.dtype]:
    types = {_C.casting_to(device_type) for device_type in _C.shielded_device_types()}
    return {dtype for dtype in types if dtype is not None}


class OpenCasts:
    """O1's casts in the thread that made this, until closed or dropped, by any thread."""

    is_open: bool = False
    _has_warned = False

    def __init__(self, device_types: list[str], dtype: torch.dtype) -> None:
        self._autocast = _C.OpenAutocast(device_types, dtype)
        self.is_open = True
        OPEN.hold()

    def join(self) -> contextlib.AbstractContextManager[None]:
        """A context in which any thread casts as the one that made this. Warns once where it is
        entered to train after close()."""
        if not (self.is_open or self._has_warned) and torch.is_grad_enabled():
            self._has_warned = True
            warn(
                "forward: expected an open Amp, got one that close() has ended: its models compute "
                "in float32 from now on; close it after training, and call them in torch.no_grad()"
            )
        return _C.JoinAutocast(self._autocast)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._autocast.close()
            OPEN.release()

    __del__ = close


def autocast(
    device_type: str | bool = "cuda",
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> torch.autocast:
    """Returns a torch.autocast, a context and a decorator.

    Takes the arguments of torch.autocast, and those of torch.cuda.amp.autocast (enabled=True,
    dtype=torch.float16, cache_enabled=True), which is for CUDA.
    """
    if isinstance(device_type, bool):
        cache_enabled = enabled if cache_enabled is None else cache_enabled
        return autocast("cuda", dtype, device_type, cache_enabled)
    enabled = enabled and not is_missing("autocast", device_type)
    return torch.autocast(device_type, dtype, enabled, cache_enabled)


def is_missing(what: str, device_type: str) -> bool:
    """Whether torch disables `what` since there is no CUDA. Warns then, at the program's line:
    torch's own warning has that of its caller."""
    if device_type != "cuda" or torch.compiler.is_compiling():
        return False
    if not torch.cuda.amp.common.amp_definitely_not_available():
        return False
    warn(f"{what}: expected CUDA, got none: CUDA is not available, so it is disabled")
    return True


def disable_casts() -> contextlib.AbstractContextManager[None]:
    """A context in which the casts of O1 and O4 are suspended in this thread, and no product is in
    float8. A torch.autocast of the program stays active."""
    return _C.ShieldFromAutocast()

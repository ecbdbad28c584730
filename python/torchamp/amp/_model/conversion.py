"""Stage 2: the casts of what a forward takes and returns, and what it writes to its arguments."""

from __future__ import annotations

import collections
import copy
import copyreg
import dataclasses
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any

import torch

from torchamp._in_graphs import constant_in_graphs
from torchamp._load import _C
from torchamp._logging import warn

#: Kinds in which the caller sees what forward sets, as in attributes.
_MAPPINGS = (dict, collections.UserDict)
_SEQUENCES = (list, collections.deque)
#: An argument or what is in it, what was made of it, and the state of that before forward.
Copy = tuple[Any, Any, Any]
#: Kinds whose elements are not their attributes. Dynamo cannot ask each for a method `to`.
_BUILT_IN = (dict, list, tuple, set, frozenset)
_MUTABLE = (dict, collections.OrderedDict, list, collections.deque)


def convert(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating tensors in `dtype`; the caller's objects stay as they are.

    Traverses mappings (keys stay), lists, tuples, named tuples, sets and iterators, and the
    attributes of dataclasses, of SimpleNamespaces and of other objects that have a method `to`,
    which is not called.
    Keeps their types, without calling __init__ of such objects, and returns the very object where
    nothing changes. Strings, arrays, modules and all else stay as they are.
    """
    return Conversion(dtype).convert(value)[0]


class Conversion:
    """Converts what one call of forward takes or returns."""

    def __init__(self, dtype: torch.dtype, copies: list[Copy] | None = None) -> None:
        self.dtype = dtype
        #: Collects what may be written; None where nobody asks.
        self.copies = copies
        #: The objects that are converted, by id: they may refer to each other.
        self._objects: dict[int, tuple[Any, bool]] = {}

    def convert(self, value: Any) -> tuple[Any, bool]:
        """`value` in the dtype, and whether it is another object: Dynamo cannot compare containers
        by identity."""
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point() or value.dtype == self.dtype:
                return value, False
            if self.copies is None:
                return value.to(self.dtype), True
            return self._noted(value, self._cast(value))
        if isinstance(value, (str, bytes, torch.nn.Module, type)):
            return value, False
        if not isinstance(value, _BUILT_IN) and _is_batch(value):
            return self._convert_object(value)
        if isinstance(value, Mapping):
            converted, changes = self._convert_values(value)
            if not (changes or self._may_get_16_bits(value)):
                return value, False
            return self._noted(value, _with_values(value, converted))
        if isinstance(value, (Sequence, Set)):
            return self._convert_elements(value)
        if isinstance(value, Iterator):
            return (convert(element, self.dtype) for element in value), True
        return value, False

    def _may_get_16_bits(self, value: Any) -> bool:
        """Whether forward may leave such tensors in it, which the caller gets as outputs."""
        return self.copies is not None and self.dtype.itemsize < 4 and type(value) in _MUTABLE

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Outside of inference mode, which would not count writes to what this makes."""
        if not torch.is_inference_mode_enabled():
            return tensor.to(self.dtype)
        with torch.inference_mode(False), torch.no_grad():
            return tensor.to(self.dtype)

    def _noted(self, given: Any, made: Any) -> tuple[Any, bool]:
        if self.copies is not None:
            state = made._version if isinstance(made, torch.Tensor) else _elements(made)
            self.copies.append((given, made, state))
        return made, True

    def _convert_object(self, value: Any) -> tuple[Any, bool]:
        if torch.compiler.is_compiling():  # a graph would hold for objects of the same id alone
            return self._convert_attributes(value, object.__new__(type(value)))
        if id(value) not in self._objects:
            result = _empty(type(value))
            self._objects[id(value)] = result, False
            self._objects[id(value)] = self._convert_attributes(value, result)
        return self._objects[id(value)]

    def _convert_attributes(self, value: Any, result: Any) -> tuple[Any, bool]:
        own, has_own = self._convert_values(getattr(value, "__dict__", {}))
        slots, has_slots = self._convert_values(_slots_of(value))
        if result is None or not (has_own or has_slots):
            return value, False
        if own:
            vars(result).update(own)
            self._noted(vars(value), vars(result))
        for name, element in slots.items():
            object.__setattr__(result, name, element)
        return self._noted(value, result)

    def _convert_values(self, value: Mapping) -> tuple[dict, bool]:
        converted, changes = {}, False
        for key, element in value.items():
            converted[key], changed = self.convert(element)
            changes |= changed
        return converted, changes

    def _convert_elements(self, value: Sequence | Set) -> tuple[Any, bool]:
        converted, changes = [], False
        for element in value:
            result, changed = self.convert(element)
            converted.append(result)
            changes |= changed
        if not (changes or self._may_get_16_bits(value)):
            return value, False
        if hasattr(value, "_fields"):
            return type(value)(*converted), True
        return self._noted(value, _of_kind(type(value), converted))


def name_of_argument(
    dtype: torch.dtype, forward: Callable, args: tuple, kwargs: dict, tensor: torch.Tensor
) -> str:
    """The name of the argument whose conversion to `dtype` cast `tensor`."""
    bound = inspect.signature(forward).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        copies: list[Copy] = []
        Conversion(dtype, copies).convert(value)
        if any(given is tensor for given, _, _ in copies):
            return name
    return ""


def _is_written(copy: Copy) -> bool:
    _, made, state = copy
    if isinstance(made, torch.Tensor):
        return made._version != state
    elements = _elements(made)
    return len(elements) != len(state) or not all(map(operator.is_, elements, state))


def _elements(made: Any) -> list:
    """What forward may replace in it."""
    if isinstance(made, _SEQUENCES):
        return list(made)
    if isinstance(made, _MAPPINGS):
        return [*made, *made.values()]
    return [] if isinstance(made, _BUILT_IN) else list(_slots_of(made).values())


def _is_batch(value: Any) -> bool:
    has_to = callable(getattr(value, "to", None))
    return has_to or dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace)


def _empty(kind: type) -> Any:
    """An object of `kind` that lacks its attributes; None for kinds that C makes."""
    try:
        base = types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object
        return base.__new__(kind)
    except TypeError:
        return None


def _with_values(value: Mapping, converted: dict) -> Mapping:
    if type(value) is collections.OrderedDict:  # by name, for Dynamo
        return collections.OrderedDict(converted)
    if type(value) is dict or not isinstance(value, MutableMapping):
        return _of_kind(type(value), converted)
    result = copy.copy(value)
    for key, element in converted.items():
        result[key] = element
    return result


def _of_kind(kind: Callable, content: dict | list) -> Any:
    """A `kind` of `content`; plain content where a `kind` is not made that way."""
    try:
        return kind(content)
    except TypeError:
        return content


@constant_in_graphs
def _slot_names(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]


def _slots_of(value: Any) -> dict[str, Any]:
    """Its attributes that have a slot."""
    names = _slot_names(type(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def write_back(
    copies: list[Copy],
    convert: Callable[[Any], Any],
    name_of: Callable[[torch.Tensor], str],
) -> None:
    """Gives arguments what forward wrote to the copies that were made of them.

    Args:
        convert: makes an output of an object that forward left in an argument.
        name_of: the name of the argument that a tensor is in, for a warning that it is not written.
    """
    written = [copy for copy in copies if _is_written(copy)]
    originals = {id(made): given for given, made, _ in copies} if written else {}

    def callers(element: Any) -> Any:
        return originals[id(element)] if id(element) in originals else convert(element)

    for given, made, _ in written:
        if isinstance(made, torch.Tensor):
            _write_tensor(given, made, name_of)
        elif isinstance(made, _SEQUENCES):
            given.clear()
            given.extend(map(callers, made))
        elif isinstance(made, _MAPPINGS):
            for key in given.keys() - made.keys():
                del given[key]
            for key, element in made.items():
                given[key] = callers(element)
        else:
            for name, element in _slots_of(made).items():
                object.__setattr__(given, name, callers(element))


def _write_tensor(given: torch.Tensor, made: torch.Tensor, name_of: Callable[[Any], str]) -> None:
    try:
        given.copy_(_merged(given, made))
    except RuntimeError as error:
        warn(
            f"forward: expected to write its argument {name_of(given)!r} back to the caller's "
            f"tensor, got one that cannot be written and stays as it was: {error}; return the new "
            "value from forward instead",
        )


def tell_rounded(
    copies: list[Copy], dtype: torch.dtype, name_of: Callable[[torch.Tensor], str]
) -> None:
    """Warns of an argument whose numbers a cast to 16 bits moves by more than a half, as it does
    boxes, times and positions; not of masks, which have one number beside 0. Waits for the
    device."""
    for given, made, _ in copies:
        if type(given) is not torch.Tensor or not _C.has_memory(given):
            continue
        wide = given.detach()
        moved = (wide - made.detach().to(wide.dtype)).abs()
        numbers = wide[(wide != 0) & moved.isfinite()]
        if bool((moved > 0.5).any()) and bool((numbers != numbers[:1]).any()):
            return warn(
                f"forward: expected arguments whose numbers {dtype} holds, got "
                f"{name_of(given)!r}, some of which it moves by "
                f"{float(moved[moved.isfinite()].max()):.3g}; where they have to be exact, as "
                f"boxes, times and positions, initialize with keep_fp32={name_of(given)!r}"
            )


def _merged(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """What was not written stays unrounded, unless grads flow back through `made`."""
    if made.requires_grad:
        return made
    return torch.where(given.to(made.dtype) == made, given, made.to(given.dtype))

"""Casts what goes into a model's forward and what comes out of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any

import torch


def convert(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating tensors in `dtype`.

    Goes into mappings (keys stay), lists, tuples, named tuples, sets and iterators, keeps their
    types, and returns the very object where nothing changes. Other objects that have a method `to`
    are asked for `value.to(dtype)`. Strings, arrays, modules, dataclasses and all else stay as they
    are.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (str, bytes, torch.nn.Module, type)):
        return value
    if callable(getattr(value, "to", None)):
        return value.to(dtype)
    if isinstance(value, Mapping):
        return _convert_mapping(value, dtype)
    if isinstance(value, (Sequence, Set)):
        return _convert_elements(value, dtype)
    if isinstance(value, Iterator):
        return (convert(element, dtype) for element in value)
    return value


def _same(before: Iterable, after: Iterable) -> bool:
    return all(a is b for a, b in zip(before, after))


def _convert_mapping(value: Mapping, dtype: torch.dtype) -> Mapping:
    converted = {key: convert(element, dtype) for key, element in value.items()}
    if _same(value.values(), converted.values()):
        return value
    if not isinstance(value, MutableMapping):
        return _rebuilt(type(value), converted)
    result = copy.copy(value)
    for key, element in converted.items():
        result[key] = element
    return result


def _convert_elements(value: Sequence | Set, dtype: torch.dtype) -> Any:
    converted = [convert(element, dtype) for element in value]
    if _same(value, converted):
        return value
    if hasattr(value, "_fields"):
        return type(value)(*converted)
    return _rebuilt(type(value), converted)


def _rebuilt(kind: Callable, content: dict | list) -> Any:
    """A `kind` of `content`; plain content where a `kind` is not made that way."""
    try:
        return kind(content)
    except TypeError:
        return content

"""What forward writes to copies of its arguments, written to the arguments."""

from __future__ import annotations

import collections
import copyreg
from collections.abc import Callable
from typing import Any

import torch

from torchamp._in_graphs import constant_in_graphs
from torchamp._logging import warn

#: Kinds in which the caller sees what forward sets, as in attributes.
MAPPINGS = (dict, collections.UserDict)
SEQUENCES = (list, collections.deque)
#: An argument or what is in it, what was made of it, and the state of that before forward.
Copy = tuple[Any, Any, Any]


@constant_in_graphs
def _slot_names(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined]


def slots_of(value: Any) -> dict[str, Any]:
    """Its attributes that have a slot."""
    names = _slot_names(type(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def write_back(
    written: list[Copy],
    copies: list[Copy],
    convert: Callable[[Any], Any],
    name_of: Callable[[torch.Tensor], str],
) -> None:
    """Gives arguments what forward wrote to the copies that were made of them.

    Args:
        written: those of `copies` that forward wrote to.
        convert: makes an output of an object that forward left in an argument.
        name_of: the name of the argument that a tensor is in, for a warning that it is not written.
    """
    originals = {id(made): given for given, made, _ in copies}

    def callers(element: Any) -> Any:
        return originals[id(element)] if id(element) in originals else convert(element)

    for given, made, _ in written:
        if isinstance(made, torch.Tensor):
            _write_tensor(given, made, name_of)
        elif isinstance(made, SEQUENCES):
            given.clear()
            given.extend(map(callers, made))
        elif isinstance(made, MAPPINGS):
            _write_mapping(given, made, callers)
        else:
            for name, element in slots_of(made).items():
                object.__setattr__(given, name, callers(element))


def _write_mapping(given: Any, made: Any, callers: Callable[[Any], Any]) -> None:
    for key in given.keys() - made.keys():
        del given[key]
    for key, element in made.items():
        given[key] = callers(element)


def _write_tensor(given: torch.Tensor, made: torch.Tensor, name_of: Callable[[Any], str]) -> None:
    try:
        given.copy_(_merged(given, made))
    except RuntimeError as error:
        warn(
            f"forward: expected to write its argument {name_of(given)!r} back to the caller's "
            f"tensor, got one that cannot be written and stays as it was: {error}; return the new "
            "value from forward instead",
        )


def _merged(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """What was not written stays unrounded, unless grads flow back through `made`."""
    if made.requires_grad:
        return made
    return torch.where(given.to(made.dtype) == made, given, made.to(given.dtype))

"""Every public name of the Python packages has a docstring."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator

import pytest

import torchamp
from torchamp import amp, ops, optimizers

MODULES = (torchamp, amp, ops, optimizers)


def can_have_one(item: object) -> bool:
    is_type = typing.get_origin(item) is not None
    return callable(item) and not is_type or isinstance(item, property)


def public_names() -> Iterator[tuple[str, object]]:
    """The functions and classes of each module, and the members of our classes."""
    for module in MODULES:
        for name in module.__all__:
            item = getattr(module, name)
            if not can_have_one(item):
                continue
            yield f"{module.__name__}.{name}", item
            if inspect.isclass(item) and item.__module__.startswith("torchamp"):
                yield from public_members(f"{module.__name__}.{name}", item)


def public_members(prefix: str, owner: type) -> Iterator[tuple[str, object]]:
    if hasattr(owner, "__members__"):  # an enum of pybind11: the rest is not ours
        return
    for name in vars(owner):
        item = getattr(owner, name)
        if not name.startswith("_") and can_have_one(item):
            yield f"{prefix}.{name}", item


def words(item: object) -> str:
    """The docstring, its own or inherited, without the signature that pybind11 puts first."""
    text = inspect.getdoc(item) or ""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(f"{getattr(item, '__name__', None)}(") else text


ITEMS = dict(public_names())


def test_initialize_describes_each_argument() -> None:
    arguments = (inspect.getdoc(amp.initialize) or "").split("Args:\n")[1].split("\n\n")[0]
    described = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert described == list(inspect.signature(amp.initialize).parameters)


@pytest.mark.parametrize("name", ITEMS)
def test_is_in_google_style(name: str) -> None:
    """Arguments and errors are in sections."""
    text = words(ITEMS[name])
    assert not re.search(r"(?:^|[.;] )Raises \w*(?:Error|Interrupt)", text, re.MULTILINE)
    assert not re.search(r"(?:\A|\n\n)\w+(?:, \w+)*: \S", text)
    if isinstance(ITEMS[name], property):  # else the page has it for a type
        assert not re.match(r"[^`\n]*:", text)


@pytest.mark.parametrize("name", ITEMS)
def test_has_a_docstring(name: str) -> None:
    assert words(ITEMS[name]).strip()

"""What functions say of arguments of a wrong type."""

from __future__ import annotations

from typing import Any


def expect(is_right: bool, function: str, argument: str, what: str, value: Any) -> None:
    """Raises TypeError, which names all of them, unless `is_right`."""
    if not is_right:
        raise TypeError(f"{function}: expected {argument} to be {what}, got {type_of(value)}")


def type_of(value: Any) -> str:
    """With an article: "a float", "an SGD"."""
    name = type(value).__name__
    spelt = name[1:2].isupper()  # letter by letter
    return f"{'an' if name[0] in ('AEFHILMNORSX' if spelt else 'AEIOUaeiou') else 'a'} {name}"


def is_number(value: Any) -> bool:
    """Whether float() takes it, and it is no text: a tensor of several elements is no number."""
    try:
        float(value)
    except Exception:  # of which kind is the value's choice
        return False
    return not isinstance(value, (str, bytes, bytearray))


def is_boolean(value: Any) -> bool:
    """Whether it equals True or False."""
    try:
        return bool(value in (True, False))
    except Exception:  # a tensor or an array of several elements
        return False

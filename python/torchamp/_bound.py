"""Functions of the compiled module that programs call. pybind11 has their signatures in docstrings
alone, and its errors list C++ overloads."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from typing import Any

import torch

from torchamp import _C
from torchamp._arguments import hint_on, is_boolean, is_number, type_of

#: The start of pybind11's errors for wrong arguments, after the function's name.
_WRONG = "(): incompatible "

#: pybind11's spellings of Python's hints and defaults: versions differ.
_SPELLED = (
    (r"typing\.SupportsFloat( \| typing\.SupportsIndex)?", "float"),
    (r"typing\.SupportsInt( \| typing\.SupportsIndex)?", "int"),
    (r"Optional\[([\w.]+)\]", r"\1 | None"),
    (r"Union\[([\w.]+), ([\w.]+)\]", r"\1 | \2"),
    (r"<(\w+)\.(\w+): \d+>", r"\1.\2"),
    (r"<([\w.]+) object at 0x\w+>", r"\1()"),
    (r"typing\.|torchamp\._C\.(ops\.)?", ""),
    (r"::", "."),
)
_NAMES = {**vars(_C.ops), "LossScaler": _C.LossScaler, "device": torch.device}

#: The remedy for a rule's own keywords, given to functions that take the rule.
_INSTEAD = dict.fromkeys(
    ("growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale"),
    "give them to rule=ops.ScaleRule(…)",
)

#: The words of messages for a type; others go by their name.
_WORDS = {
    "float": "a number",
    "int": "an integer",
    "bool": "True or False",
    "str": "text",
    "None": "None",
}


def plain(function: Any, name: str = "", argument: str = "") -> Any:
    """`function` with a signature, and with errors in torchamp's words.

    name: what errors call it. argument: what they call a setter's.
    """
    name = name or function.__name__
    signature = _signature_of(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if _WRONG not in str(error):
                raise
        raise TypeError(f"{name}{_reason(signature, args, kwargs, argument)}")

    vars(call)["__signature__"] = signature
    return call


def make_plain(kind: Any) -> None:
    """Makes the constructor, the methods and the attributes of a class plain."""
    of = kind.__name__
    for name, member in list(vars(kind).items()):
        if name == "__init__":
            setattr(kind, name, plain(member, of))
        elif isinstance(member, property) and member.fset is not None:
            setter = plain(member.fset, of, argument=name)
            setattr(kind, name, property(member.fget, setter, doc=member.__doc__))
        elif not name.startswith("_") and inspect.isroutine(member):
            setattr(kind, name, plain(member, f"{of}.{name}"))


def _signature_of(function: Any) -> inspect.Signature:
    """The signature in its docstring's first line."""
    line = function.__doc__.partition("\n")[0]
    for theirs, ours in _SPELLED:
        line = re.sub(theirs, ours, line)
    (node,) = ast.parse(f"def f{line[line.index('(') :]}: ...").body
    assert isinstance(node, ast.FunctionDef) and node.returns is not None
    given = node.args
    absent = [None] * (len(given.args) - len(given.defaults))
    by_place = zip(given.args, [*absent, *given.defaults])
    by_name = zip(given.kwonlyargs, given.kw_defaults)
    parameters = [_parameter(*each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in by_place]
    parameters += [_parameter(*each, inspect.Parameter.KEYWORD_ONLY) for each in by_name]
    return inspect.Signature(parameters, return_annotation=ast.unparse(node.returns))


def _parameter(given: ast.arg, default: ast.expr | None, kind: Any) -> inspect.Parameter:
    value = inspect.Parameter.empty
    if default is not None:
        value = eval(compile(ast.Expression(default), "<signature>", "eval"), _NAMES)
    hint = ast.unparse(given.annotation) if given.annotation else inspect.Parameter.empty
    return inspect.Parameter(given.arg, kind, default=value, annotation=hint)


def _reason(signature: inspect.Signature, args: Any, kwargs: Any, argument: str) -> str:
    """Why a call with these arguments is wrong, after the function's name."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        known = signature.parameters
        wrong = next((name for name in kwargs if name not in known), "")
        return f"() {error}{hint_on(wrong, known, _INSTEAD if 'rule' in known else {})}"
    for name, value in given.items():
        hints = signature.parameters[name].annotation.split(" | ")
        if not any(_is_one(hint, value) for hint in hints):
            words = " or ".join(_WORDS.get(hint) or f"a {hint}" for hint in hints)
            return f": expected {argument or name} to be {words}, got {type_of(value)}"
    numbers = [repr(value) for value in given.values() if is_number(value)]
    return f": expected numbers of 64 bits, got {', '.join(numbers)}"


def _is_one(hint: str, value: Any) -> bool:
    """Whether pybind11 takes `value` for one."""
    if hint in ("float", "int"):
        return is_number(value) and (hint == "float" or not isinstance(value, float))
    if hint == "bool":
        return is_boolean(value)
    if hint == "None":
        return value is None
    name = hint.rpartition(".")[2]
    return any(base.__name__ == name for base in type(value).__mro__)


for public in (_C.LossScaler, _C.StepAlgorithm, _C.ops.Check, _C.ops.ScaleRule):
    make_plain(public)

"""The stubs, which are written by hand, have the arguments of the compiled module's functions.
stubtest cannot see them: pybind11 has them in docstrings only."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from torchamp._load import _C

STUBS = pathlib.Path(__file__).parents[3] / "python" / "torchamp" / "_C"
#: pybind11's own methods that the stub has too.
SPECIAL = ("__init__", "__enter__", "__exit__")


def arguments_of(definition: str) -> list[str]:
    """The names without self, "_" where there is none to be called by; "=" marks what may be left
    out, "*" what goes by name only."""
    (function,) = ast.parse(f"{definition}: ...").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    unnamed = ["_" if each.arg != "self" else "self" for each in given.posonlyargs]
    names = unnamed + [re.sub(r"^arg\d+$", "_", each.arg) for each in given.args]
    for i in range(len(names) - len(given.defaults), len(names)):
        names[i] += "="
    for each, default in zip(given.kwonlyargs, given.kw_defaults):
        names.append(f"*{each.arg}{'=' if default else ''}")
    names += [f"*{each.arg}" for each in (given.vararg, given.kwarg) if each]
    return [name for name in names if name != "self"]


def in_stub(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """(name, arguments) of all functions that the stub declares, with those of its _Context."""
    context = [each for each in body if isinstance(each, ast.ClassDef) and each.name == "_Context"]
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            is_context = any(ast.unparse(base) == "_Context" for base in node.bases)
            inherited = context[0].body if is_context else []
            yield from in_stub([*inherited, *node.body], f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            if not any(ast.unparse(each) == "property" for each in node.decorator_list):
                yield prefix + node.name, arguments_of(f"def {node.name}({ast.unparse(node.args)})")


def in_module(owner: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """The names and arguments of all that the compiled module has."""
    for name, value in vars(owner).items():
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(value, type):
            yield from in_module(value, f"{prefix}{name}.")
        elif not isinstance(value, property) and (
            signature := documented(name, getattr(owner, name))
        ):
            yield prefix + name, arguments_of(f"def {signature}")


def documented(name: str, function: Any) -> str:
    """The signature as pybind11 documents it; "" for what is object's."""
    first_line = (function.__doc__ or "").partition("\n")[0]
    signature = re.sub(r"<[^<>]*>", "...", first_line).replace("::", ".")
    return signature if signature.startswith(f"{name}(") else ""


@pytest.mark.parametrize("file, module", [("__init__.pyi", _C), ("ops.pyi", _C.ops)])
def test_arguments(file: str, module: ModuleType) -> None:
    assert dict(in_stub(ast.parse((STUBS / file).read_text()).body)) == dict(in_module(module))

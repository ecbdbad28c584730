"""_C.pyi, which is written by hand, has the compiled module's names and arguments."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torchamp._load import _C

STUB = pathlib.Path(__file__).parents[2] / "python" / "torchamp" / "_C.pyi"
#: What of pybind11's own the stub has too.
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


def in_stub(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, what it is) for all that the stub declares."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, "class"
            yield from in_stub(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
            definition = f"def {node.name}({ast.unparse(node.args)})"
            yield prefix + node.name, "property" if is_property else arguments_of(definition)
        elif isinstance(node, ast.AnnAssign):
            is_constant = "ClassVar" in ast.unparse(node.annotation)
            yield prefix + ast.unparse(node.target), "constant" if is_constant else "attribute"


def in_module(owner: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, what it is) for all that the compiled module has."""
    for name, value in vars(owner).items():
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(value, (type, ModuleType)):
            yield prefix + name, "class"
            yield from in_module(value, f"{prefix}{name}.")
        elif isinstance(value, property):
            yield prefix + name, "attribute" if value.fset else "property"
        elif isinstance(owner, type) and isinstance(value, owner):
            yield prefix + name, "constant"
        elif signature := documented(name, getattr(owner, name)):
            yield prefix + name, arguments_of(f"def {signature}")


def documented(name: str, function: Any) -> str:
    """The signature as pybind11 documents it; "" for what is object's."""
    first_line = (function.__doc__ or "").partition("\n")[0]
    signature = re.sub(r"<[^<>]*>", "...", first_line).replace("::", ".")
    return signature if signature.startswith(f"{name}(") else ""


def test_the_stub_declares_what_is_there() -> None:
    assert dict(in_stub(ast.parse(STUB.read_text()).body)) == dict(in_module(_C))

"""HACKING.md names everything private of torch that the package uses."""

import ast
import pathlib
import re
from collections.abc import Iterator

ROOT = next(path for path in pathlib.Path(__file__).parents if (path / "HACKING.md").exists())
TABLE = (ROOT / "HACKING.md").read_text(encoding="utf-8").partition("What is private in torch")[2]
PACKAGE = ROOT / "python" / "torchamp"
TREES = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
PRIVATE = re.compile(r"_[A-Za-z]\w+")

#: Python's, and Lightning's.
OTHERS = {"_after_closure", "_asdict", "_fields", "_getframe", "_slotnames"}


def defined_here() -> set[str]:
    """All names that the package defines, whatever they are of."""
    paths = {path.stem for path in PACKAGE.rglob("*")}
    nodes = [node for tree in TREES for node in ast.walk(tree)]
    stored = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    return (
        paths
        | {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        | {node.id for node in stored if isinstance(node, ast.Name)}
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | {node.attr for node in stored if isinstance(node, ast.Attribute)}
    )


def private_names(node: ast.AST) -> Iterator[str]:
    """Those that the node takes of torch, in attributes, texts and imports."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and PRIVATE.fullmatch(str(node.value)):
        yield str(node.value)
    elif isinstance(node, ast.Import):
        yield from (each.name for each in node.names if "torch._" in each.name)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
        yield from (each.name for each in node.names)
        if "._" in str(node.module):
            yield str(node.module)


def test_the_table_has_every_name():
    own = defined_here() | OTHERS
    used = {name for tree in TREES for node in ast.walk(tree) for name in private_names(node)}
    private = {name for name in used - own if PRIVATE.fullmatch(name) or "._" in name}
    named = set(re.findall(r"`([\w.]+)`", TABLE.partition("\n## ")[0]))
    assert len(private) > 30
    assert private - named == set()
    assert {name for name in named if PRIVATE.fullmatch(name)} - private == set()

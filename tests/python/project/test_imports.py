"""No module of the package imports itself by way of others, for types or in a function either; only
the modules that name what is public import the tools; and what an import of the package brings with
it."""

from __future__ import annotations

import ast
import graphlib
import pathlib
import re
from collections.abc import Iterator

import pytest

import torchamp


def modules_in(package: pathlib.Path) -> dict[str, ast.Module]:
    """By name, every module of the package."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def imports_of(module: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) for each name that is imported anywhere in it."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)


def graph_of(package: pathlib.Path) -> dict[str, set[str]]:
    """By module, the package's modules that it imports. The compiled one imports none."""
    modules = modules_in(package)
    compiled = f"{package.name}._C"
    known = {*modules, compiled}
    graph = {}
    for importer, module in modules.items():
        targets = {
            f"{source}.{name}" if f"{source}.{name}" in known else source
            for source, name in imports_of(module)
        }
        graph[importer] = targets & known
    return graph


def sort(package: pathlib.Path) -> list[str]:
    """The modules, each after those it imports. Raises CycleError, which names the circle."""
    return list(graphlib.TopologicalSorter(graph_of(package)).static_order())


def test_there_are_no_circles() -> None:
    order = sort(pathlib.Path(torchamp.__file__).parent)
    assert order.index("torchamp._C") < order.index("torchamp._load") < order.index("torchamp")


@pytest.mark.parametrize(
    "way_back",
    [
        "from package.first import name",
        "import package.first",
        "from package import first",
        "if TYPE_CHECKING:\n    from package.first import name",
        "def function():\n    from package.first import name",
    ],
)
def test_a_circle_is_found(tmp_path: pathlib.Path, way_back: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.first import name")
    (package / "first.py").write_text("from package import second")
    (package / "second.py").write_text("")
    assert sort(package) == ["package.second", "package.first", "package"]
    (package / "second.py").write_text(way_back)
    with pytest.raises(graphlib.CycleError, match="first.*second|second.*first"):
        sort(package)


#: Modules beside the rest of the package, which does without them.
TOOLS = ("torchamp._tools", "torchamp.compat", "torchamp.doctor")
#: The modules and programs by whose names users find the tools.
PUBLIC = {
    "torchamp",
    "torchamp.__main__",
    "torchamp.amp",
    "torchamp.apex",
    "torchamp.lightning",
    "torchamp.pytorch_lightning",
}


def is_tool(module: str) -> bool:
    return any(module == tool or module.startswith(f"{tool}.") for tool in TOOLS)


def users_of_tools(graph: dict[str, set[str]]) -> set[str]:
    """The modules that are no tools themselves."""
    users = {importer for importer, targets in graph.items() if any(map(is_tool, targets))}
    return {importer for importer in users if not is_tool(importer)}


def test_only_public_modules_import_the_tools() -> None:
    assert users_of_tools(graph_of(pathlib.Path(torchamp.__file__).parent)) == PUBLIC


def test_another_user_of_the_tools_is_found(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "torchamp"
    (package / "_tools").mkdir(parents=True)
    (package / "_tools" / "watch.py").write_text("")
    (package / "_tools" / "report.py").write_text("from torchamp._tools import watch")
    (package / "_core.py").write_text("def f():\n    from torchamp._tools.watch import Op")
    assert users_of_tools(graph_of(package)) == {"torchamp._core"}


HACKING = pathlib.Path(__file__).parents[3] / "HACKING.md"
#: The rooms of amp that each room may import, in the table's order: from below to above.
MAY_IMPORT = {
    room: set(re.findall(r"`(\w+)`", cell))
    for room, cell in re.findall(
        r"^\| `(_\w+)` \| .* \| ([^|]*) \|$",
        HACKING.read_text(encoding="utf-8").partition("| may import |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
}


def room_of(module: str) -> str | None:
    """The room of amp that it is in; "" in amp itself; None elsewhere."""
    name = module.removeprefix("torchamp.amp.")
    return None if name == module else name.partition(".")[0] if "." in name else ""


def test_a_room_of_amp_imports_what_the_table_says() -> None:
    imported: dict[str, set[str]] = {}
    for importer, targets in graph_of(pathlib.Path(torchamp.__file__).parent).items():
        if room := room_of(importer):
            rooms = {found for target in targets if (found := room_of(target)) is not None}
            imported.setdefault(room, set()).update(rooms - {room})
    assert imported == MAY_IMPORT
    for number, room in enumerate(MAY_IMPORT):
        assert MAY_IMPORT[room] <= set([*MAY_IMPORT][:number])


def test_an_import_does_not_bring_the_compiler_of_graphs(new_python) -> None:
    program = "import sys, torch; before = set(sys.modules); import torchamp; "
    program += "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    program += "; print('torch._dynamo' in sys.modules, 'torch._inductor' in sys.modules)"
    packages, compilers = new_python("-c", program).splitlines()
    assert "sympy" not in packages.split()
    assert compilers == "False False"

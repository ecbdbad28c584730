"""The folders of csrc include what HACKING.md's table says, and no two include each other."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SOURCES = ROOT / "csrc"
ROW = re.compile(r"^\| `([\w/]+)` \| (.*) \| ([^|]*) \|$", re.MULTILINE)
TABLE = (ROOT / "HACKING.md").read_text(encoding="utf-8").partition("| may include |")[2]
TABLE = TABLE.partition("\n\n")[0]

#: The folders that each folder may include, in the table's order: from below to above.
MAY_INCLUDE = {room: re.findall(r"`([\w/]+)`", cell) for room, _, cell in ROW.findall(TABLE)}
WITHOUT_TORCH = [room for room, contains, _ in ROW.findall(TABLE) if "Nothing of torch" in contains]

#: The tools' public headers, and who may include them.
TOOLS_HEADERS = {"overflow_trace.h", "preflight.h"}
USE_TOOLS = {"python", *(room for room in MAY_INCLUDE if room.startswith("tools/"))}


def texts(room):
    for path in sorted((SOURCES / room).rglob("*")):
        if path.suffix in (".h", ".cpp", ".cuh", ".cu"):
            yield path.relative_to(SOURCES), path.read_text(encoding="utf-8")


def folders_in(folder):
    return {str(path.relative_to(SOURCES)) for path in folder.iterdir() if path.is_dir()}


def room_of(include):
    """The room of `include`, such as "ops/plan.h": the tools' are found by their own names."""
    name = include.partition("/")[0]
    return f"tools/{name}" if f"tools/{name}" in MAY_INCLUDE else name


def test_the_table_has_every_folder():
    assert set(MAY_INCLUDE) == folders_in(SOURCES) - {"tools"} | folders_in(SOURCES / "tools")
    assert WITHOUT_TORCH == ["cuda"]


def test_the_table_goes_from_below_to_above():
    rooms = list(MAY_INCLUDE)
    for number, room in enumerate(rooms):
        assert set(MAY_INCLUDE[room]) <= set(rooms[:number]), room


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_folder_includes_what_the_table_says(room):
    included = set()
    for path, text in texts(room):
        others = set(map(room_of, re.findall(r'#include "(\w+/)', text))) - {room}
        assert others <= set(MAY_INCLUDE[room]), path
        included |= others
    assert included == set(MAY_INCLUDE[room])


@pytest.mark.parametrize("room", sorted(room for room in MAY_INCLUDE if room not in USE_TOOLS))
def test_the_rest_includes_no_header_of_a_tool(room):
    for path, text in texts(room):
        assert not TOOLS_HEADERS & set(re.findall(r"#include <torchamp/(\S+)>", text)), path


def test_the_tools_headers_are_the_tools():
    included = {
        header
        for room in MAY_INCLUDE
        if room.startswith("tools/")
        for _, text in texts(room)
        for header in re.findall(r"#include <torchamp/(\S+)>", text)
    }
    assert TOOLS_HEADERS <= included


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_folder_without_torch_includes_none_of_its_headers(room):
    for path, text in texts(room):
        assert not re.search(r"#include <(ATen|c10|torch|torchamp)/", text), path

"""The folders of csrc include what HACKING.md's table says, and no two include each other."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SOURCES = ROOT / "csrc"
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| ([^|]*) \|$", re.MULTILINE)
TABLE = (ROOT / "HACKING.md").read_text(encoding="utf-8").partition("| may include |")[2]

#: Each folder's folders, in the table's order: from below to above.
MAY_INCLUDE = {room: re.findall(r"`(\w+)`", cell) for room, _, cell in ROW.findall(TABLE)}
WITHOUT_TORCH = [room for room, contains, _ in ROW.findall(TABLE) if "Nothing of torch" in contains]


def texts(room):
    for path in sorted((SOURCES / room).rglob("*")):
        if path.suffix in (".h", ".cpp", ".cuh", ".cu"):
            yield path.relative_to(SOURCES), path.read_text(encoding="utf-8")


def test_the_table_has_every_folder():
    assert sorted(MAY_INCLUDE) == sorted(path.name for path in SOURCES.iterdir() if path.is_dir())
    assert WITHOUT_TORCH == ["cuda"]


def test_the_table_goes_from_below_to_above():
    rooms = list(MAY_INCLUDE)
    for number, room in enumerate(rooms):
        assert set(MAY_INCLUDE[room]) <= set(rooms[:number]), room


@pytest.mark.parametrize("room", MAY_INCLUDE)
def test_a_folder_includes_what_the_table_says(room):
    included = set()
    for path, text in texts(room):
        others = {name for name in re.findall(r'#include "(\w+)/', text) if name != room}
        assert others <= set(MAY_INCLUDE[room]), path
        included |= others
    assert included == set(MAY_INCLUDE[room])


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_folder_without_torch_includes_none_of_its_headers(room):
    for path, text in texts(room):
        assert not re.search(r"#include <(ATen|c10|torch|torchamp)/", text), path

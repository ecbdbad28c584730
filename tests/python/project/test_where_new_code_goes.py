"""Adding an op, a fused optimizer, a property or an opt level touches the files that HACKING.md
names, and no more: those are the ones that name an existing one in their code."""

import io
import pathlib
import re
import tokenize
from tokenize import STRING

import pytest

ROOT = next(path for path in pathlib.Path(__file__).parents if (path / "HACKING.md").exists())
SECTION = (ROOT / "HACKING.md").read_text(encoding="utf-8").partition("## Where new code goes")[2]
SUFFIXES = (".h", ".cpp", ".cuh", ".cu", ".py", ".pyi")
FOLDERS = [ROOT / "csrc", ROOT / "include", ROOT / "python" / "torchamp"]

#: What C++ has beside code: the bindings' docstrings, comments, and messages, which have spaces.
NOT_CODE = re.compile(r'R"\(.*?\)"|//[^\n]*|"[^"\n(]* [^"\n(]*"', re.DOTALL)

#: By kind, an existing one's name, and how many files may name it in their code: of a property two
#: read it.
KINDS = {
    "An op": (r"axpby", 10),
    "A fused optimizer": (r"novo_?grad", 10),
    "A property": (r"max_consecutive_skips", 5),
    "An opt level": (r"\bO4\b", 6),
}


def code_of(path):
    """The file's text without comments, docstrings and messages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".py", ".pyi"):
        return NOT_CODE.sub("", text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(
        token.string
        for token in tokens
        if token.type != tokenize.COMMENT and not (token.type == STRING and " " in token.string)
    )


def files_naming(pattern):
    """Without `compat`, which has apex's names."""
    files = (path for folder in FOLDERS for path in folder.rglob("*"))
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.suffix in SUFFIXES
        and "compat" not in path.parts
        and re.search(pattern, code_of(path), re.IGNORECASE)
    }


def files_in_hacking(kind):
    """What the item of this kind in HACKING.md says."""
    item = SECTION.partition(f"- **{kind}**")[2].partition("\n- **")[0]
    return re.findall(r"`([\w/]+\.(?:cpp|h|cuh|pyi?))`", item)


def is_one_of(path, names):
    return any(f"/{path}".endswith(f"/{name}") for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_few_files_name_one(kind):
    pattern, most = KINDS[kind]
    found = files_naming(pattern)
    assert len(found) <= most, sorted(found)


@pytest.mark.parametrize("kind", ["An op", "A fused optimizer", "An opt level"])
def test_hacking_names_those_files(kind):
    names = files_in_hacking(kind)
    assert [path for path in files_naming(KINDS[kind][0]) if not is_one_of(path, names)] == []


def test_hacking_names_where_a_property_is_declared():
    found = files_naming(KINDS["A property"][0])
    names = files_in_hacking("A property")
    assert len(names) == 3 and all(any(is_one_of(path, [x]) for path in found) for x in names)


def test_headers_link_with_the_library_of_their_minor_version():
    project = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    major, minor = re.search(r"project\(torchamp VERSION (\d+)\.(\d+)\.", project).groups()
    for file in ("include/torchamp/detail/export.h", "csrc/ops/build_info.cpp"):
        names = re.findall(r"headers_[0-9_]+", (ROOT / file).read_text(encoding="utf-8"))
        assert set(names) == {f"headers_{major}_{minor}"}, file

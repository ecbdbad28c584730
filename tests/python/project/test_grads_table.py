"""docs/testing.md leads from what docs/grads.md promises to its tests in both languages."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]
GRADS = (ROOT / "docs" / "grads.md").read_text(encoding="utf-8")
TESTING = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]*) \| [^|]* \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
ROWS = ROW.findall(TESTING.partition("| of grads.md |")[2].partition("\n\n")[0])

#: The modules with programs of both languages.
LANGUAGES = ROOT / "tests" / "python" / "support" / "languages"
BOTH = {name: LANGUAGES / f"{name}.py" for name in ("by_hand", "mistakes")}
FILES = {
    "C++": {**BOTH, **{path.stem: path for path in (ROOT / "tests/cpp").rglob("test_*.cpp")}},
    "Python": {**BOTH, **{path.stem: path for path in (ROOT / "tests/python").rglob("test_*.py")}},
}


def promises() -> list[str]:
    """In grads.md's order."""
    text, _, states = GRADS.partition("| state |")
    table, _, rest = states.partition("\n\n")
    bold = [
        [" ".join(found.split()) for found in re.findall(r"\*\*(.+?)\*\*", part, re.DOTALL)]
        for part in (text, rest)
    ]
    return [*bold[0], *re.findall(r"^\| (\w+) \|", table, re.MULTILINE), *bold[1]]


def is_there(language: str, name: str) -> bool:
    stem, _, test = name.partition("::")
    suite, dot, of_suite = test.partition(".")
    if dot:
        wanted = rf"^TEST(_F|_P)?\(\s*{suite},\s*{of_suite}\)"
    else:
        wanted = rf'^(def {test}\(|    "{test}": )'
    path = FILES[language].get(stem)
    return path is not None and bool(re.search(wanted, path.read_text("utf-8"), re.MULTILINE))


def test_every_promise_has_its_rows():
    assert [promise for promise, _, _ in ROWS if promise] == promises()


def test_every_named_test_is_there():
    for row in ROWS:
        assert row[1:] != ("—", "—")
        for language, cell in zip(FILES, row[1:]):
            names = re.findall(r"`([^`]+)`", cell)
            assert names or cell == "—", row
            assert [name for name in names if not is_there(language, name)] == []


@pytest.mark.parametrize(
    "language, name",
    [
        ("C++", "test_core_states::StatesTest.Nothing"),
        ("C++", "test_wrong_use_steps::nothing"),
        ("C++", "by_hand::nothing"),
        ("Python", "mistakes::nothing"),
        ("Python", "test_step::test_nothing"),
        ("Python", "test_nothing::test_a_step_without_a_backward"),
    ],
)
def test_a_name_of_nothing_is_found_out(language, name):
    assert not is_there(language, name)

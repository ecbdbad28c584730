"""What the guides quote of torchamp's messages, the package says."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = next(path for path in pathlib.Path(__file__).parents if (path / "HACKING.md").exists())
#: A word of a message that is another each time.
ANY = "\0"
#: Messages of torch, and one that is put together.
OTHERS = ("expected scalar type", "expected dtype float", "expected Half", "expected betas")
LITERAL = r'"((?:[^"\\\n]|\\.)*)"'


def in_python(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else ANY for each in node.values)
            yield "".join(map(str, parts))


def in_cpp(text: str) -> Iterator[str]:
    """Literals, and what stands between those of one statement as ANY."""
    for statement in re.split(r";\n", text):
        joined = re.sub(r'"\s+"', "", statement)
        yield ANY.join(literal.replace('\\"', '"') for literal in re.findall(LITERAL, joined))


def messages() -> list[list[str]]:
    """The words of each."""
    found: list[str] = []
    for path in (ROOT / "python" / "torchamp").rglob("*.py"):
        found += in_python(ast.parse(path.read_text(encoding="utf-8")))
    for folder in ("csrc", "include"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".cpp", ".h"):
                found += in_cpp(path.read_text(encoding="utf-8"))
    return [words_of(message) for message in found if "expected" in message]


def words_of(message: str) -> list[str]:
    return [word.strip(".,:;") for word in message.split()]


def says(message: list[str], quoted: str) -> bool:
    """Whether the message has the quoted words in a row, of which a third may be ANY's."""
    words = words_of(re.sub(r"\w+\[0\]|\(\w+\)|\bHalf\b", ANY, quoted))
    for start in range(len(message)):
        pairs = list(zip(message[start:], words))
        any_ones = sum(ANY in own + word for own, word in pairs)
        is_same = all(own == word or ANY in own + word for own, word in pairs)
        if is_same and len(pairs) == len(words) and 3 * any_ones <= len(words):
            return True
    return False


def quotes() -> list[str]:
    """From `expected` on, in the guide's tables of symptoms."""
    table = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    quoted = re.findall(r"`(?:\w+: )?(expected [^`]*)`", "\n".join(cells))
    return [each for each in quoted if not each.startswith(OTHERS)]


MESSAGES = messages()


@pytest.mark.parametrize("quoted", quotes())
def test_it_is_said(quoted: str) -> None:
    for part in quoted.split("…"):
        assert any(says(message, part) for message in MESSAGES), part


def test_another_message_is_not_said() -> None:
    assert not any(says(message, "expected unscaled gradients") for message in MESSAGES)

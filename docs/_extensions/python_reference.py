"""Python's signatures and docstrings as one reads them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

#: What pybind11 writes, and the types that the stubs have.
WORDS = {
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "torchamp._C.ops.": "",
    "torchamp._C.": "",
    "torch.Tensor": "Tensor",
    "collections.abc.": "",
    "_serialize.File": "str | os.PathLike | BinaryIO",
    "ProcessGroups": "ProcessGroup | Sequence[ProcessGroup]",
    "Rule | Iterable[Rule]": "str | type | Callable | Iterable[str | type | Callable]",
    "<Check.BOTH: 3>": "Check.BOTH",
}
#: In the ops, which take lists as pybind11 objects.
LISTS = ": object", ": Sequence[Tensor | None]"
#: Methods' own argument, and a default whose text is an address.
SELF = re.compile(r"(?<=\()self: \w+(, )?")
DEFAULT = re.compile(r"<(?:\w+\.)*(\w+) object at 0x\w+>")


def _plain(text: str) -> str:
    for long, short in WORDS.items():
        text = text.replace(long, short)
    return DEFAULT.sub(r"\1()", SELF.sub("", text))


def plain(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """Programs do not make the dataclasses, which functions return."""
    if what == "class" and dataclasses.is_dataclass(obj):
        return "", None
    if signature is None:
        return None
    if name.startswith("torchamp.ops."):
        signature = signature.replace(*LISTS)
    return _plain(signature), returns and what != "class" and _plain(returns) or None


def drop_overloads(app: Sphinx) -> None:
    """Of initialize, whose own signature has all arguments and defaults."""
    analyzer = ModuleAnalyzer.for_module("torchamp.amp._amp")
    analyzer.analyze()
    del analyzer.overloads["initialize"]


#: A paragraph of arguments: `name: what it is`.
ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (\S.*)", re.DOTALL)
#: Of pybind11's enumerations.
MEMBER = re.compile(r"  (\w+)(?: : (.*))?$")


def _arguments_of(paragraph: list[str]) -> list[str]:
    fields: list[str] = []
    for line in paragraph:
        if line.startswith(" "):
            fields[-1] += f"\n{line}"
        else:
            fields.append(line)
    result = []
    for field in fields:
        match = ARGUMENT.match(field)
        assert match is not None
        result += [f":param {name}: {match[2]}" for name in match[1].split(", ")]
    return "\n".join(result).split("\n")


def _sentences_of(paragraph: list[str]) -> tuple[list[str], list[str]]:
    """The text, and fields of what follows `Returns` and `Raises`."""
    text, *raises = re.split(r"(?:^|(?<=[.]) )Raises ", " ".join(paragraph), maxsplit=1)
    fields = [f":raises: {each}" for each in raises]
    if text.startswith("Returns "):
        return [], [f":returns: {text.removeprefix('Returns ')}", *fields]
    return [text] * bool(text), fields


def _paragraphs_of(lines: list[str]) -> list[list[str]]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        paragraphs[-1].append(line) if line.strip() else paragraphs.append([])
    return [each for each in paragraphs if each]


def rest_of(lines: list[str]) -> list[str]:
    """Our docstrings as reStructuredText. The fields come last."""
    result: list[str] = []
    fields: list[str] = []
    for i, paragraph in enumerate(_paragraphs_of(lines)):
        if paragraph[0] == "Args:":
            paragraph = [line[4:] for line in paragraph[1:]]
        begins = [line for line in paragraph if not line.startswith(" ")]
        if begins and all(map(ARGUMENT.match, begins)):
            fields += _arguments_of(paragraph)
        elif paragraph[0].startswith("    "):
            result += [".. code-block:: python", "", *paragraph, ""]
        elif MEMBER.match(paragraph[0]):
            result += [f"* `{name}` {text}" for name, text in MEMBER.findall(paragraph[0])]
        elif paragraph[0].startswith(("* ", ".. ")) or paragraph == ["Members:"]:
            result += [*paragraph, ""]
        else:
            keep = i == 0 and paragraph[0].startswith("Returns ")
            text, found = (paragraph, []) if keep else _sentences_of(paragraph)
            result += [*text, ""]
            fields += found
    return [*result, "", *fields, ""]


def as_rest(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Also, `unscale_` is a name, not a link, and |x| no substitution."""
    lines[:] = rest_of(lines)
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<=\w)_(?!\w)|\|", r"\\\g<0>", part) for part in parts[::2]]
        lines[i] = "`".join(parts)


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("builder-inited", drop_overloads)
    app.connect("autodoc-process-signature", plain)
    app.connect("autodoc-process-docstring", as_rest)
    return {"parallel_read_safe": False}

"""The directive cpp-reference: everything that doxygen knows of some C++ names. A documented public
name that no page has is a warning."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

NAMESPACES = (
    "torchamp",
    "torchamp::ops",
    "torchamp::optim",
    "torch",
    "torch::amp",
    "torch::cuda::amp",
)
#: By doxygen's kind of what a name is.
DIRECTIVES = {
    "class": "doxygenclass",
    "struct": "doxygenstruct",
    "function": "doxygenfunction",
    "enum": "doxygenenum",
    "typedef": "doxygentypedef",
    "variable": "doxygenvariable",
}
logger = logging.getLogger(__name__)


def _is_documented(element: ElementTree.Element) -> bool:
    return any(
        "".join(found.itertext()).strip()
        for found in (element.find("briefdescription"), element.find("detaileddescription"))
        if found is not None
    )


def _members(folder: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """The qualified name, kind and, of functions, parameters of each documented public name."""
    for namespace in NAMESPACES:
        file = folder / f"namespace{namespace.replace('::', '_1_1')}.xml"
        compound = ElementTree.parse(file).getroot().find("compounddef")
        assert compound is not None
        for inner in compound.findall("innerclass"):
            found = ElementTree.parse(folder / f"{inner.get('refid')}.xml").getroot()[0]
            name = inner.text or ""
            if _is_documented(found) and "<" not in name:
                yield name, str(found.get("kind")), ""
        for member in compound.iter("memberdef"):
            name = f"{namespace}::{member.findtext('name')}"
            if _is_documented(member) and "operator" not in name:
                yield name, str(member.get("kind")), member.findtext("argsstring") or ""


def _index(env: BuildEnvironment) -> dict[str, list[tuple[str, str]]]:
    """Kind and parameters of each name's declarations."""
    if not hasattr(env, "torchamp_cpp_index"):
        index: dict[str, list[tuple[str, str]]] = {}
        folder = pathlib.Path(env.config.breathe_projects["torchamp"])
        for name, kind, parameters in _members(folder):
            index.setdefault(name, []).append((kind, parameters))
        env.torchamp_cpp_index = index  # type: ignore[attr-defined]
    return env.torchamp_cpp_index  # type: ignore[attr-defined]


def _shown(env: BuildEnvironment) -> set[str]:
    if not hasattr(env, "torchamp_cpp_shown"):
        env.torchamp_cpp_shown = set()  # type: ignore[attr-defined]
    return env.torchamp_cpp_shown  # type: ignore[attr-defined]


class CppReference(SphinxDirective):
    """Names, one a line."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        lines = []
        for name in self.content:
            if name not in _index(self.env):
                raise self.error(f"doxygen has nothing of {name}")
            _shown(self.env).add(name)
            for kind, parameters in _index(self.env)[name]:
                what = f"{name}{parameters}" if kind == "function" else name
                lines += ["```{eval-rst}", f".. {DIRECTIVES[kind]}:: {what}", "```", ""]
        section = nodes.Element()
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), 0, section)
        return section.children


def check_all_are_shown(app: Sphinx, env: BuildEnvironment) -> None:
    for name in sorted(_index(env).keys() - _shown(env)):
        logger.warning("no page has the C++ name %s", name)


def _leave_out(texts: list[nodes.Text], *words: str) -> list[nodes.Text]:
    """Removes a run of words from a signature; returns the rest."""
    for i in range(len(texts)):
        if tuple(texts[i : i + len(words)]) == words:
            for text in texts[i : i + len(words)]:
                text.parent.remove(text)
            return _leave_out(texts[:i] + texts[i + len(words) :], *words)
    return texts


def shorten(signature: addnodes.desc_signature) -> None:
    """Leaves out namespaces, as all names are in torchamp, and `inline`."""
    texts = list(signature.findall(nodes.Text))
    for words in (
        ("torchamp", "::", "optim", "::"),
        ("torchamp", "::"),
        ("inline", " "),
    ):
        texts = _leave_out(texts, *words)
    for name in list(signature.findall(addnodes.desc_addname)):
        short = name.astext().removeprefix("torchamp::").removeprefix("optim::")
        name.children = [nodes.Text(short)] if short else []


def _split_at_throws(paragraph: nodes.paragraph) -> None:
    """Puts what follows `Throws` into a field, as Python's errors are."""
    for i, child in enumerate(paragraph.children):
        text, throws, rest = child.astext().rpartition("Throws ")
        if isinstance(child, nodes.Text) and throws and (text == "" or text.endswith(". ")):
            errors = nodes.paragraph("", "", nodes.Text(rest), *paragraph.children[i + 1 :])
            field = nodes.field("", nodes.field_name("", "Throws"), nodes.field_body("", errors))
            before = [*paragraph.children[:i], *([nodes.Text(text.rstrip())] if text else [])]
            new = [nodes.paragraph("", "", *before)] if before else []
            paragraph.parent.replace(paragraph, [*new, nodes.field_list("", field)])
            return


def _is_of_templates(paragraph: nodes.paragraph) -> bool:
    return paragraph.astext().startswith("Subclassed by ")


def _move_getters_last(section: nodes.Element) -> None:
    """Groups of members that share a comment, which breathe puts first: all are getters."""
    for group in list(section.children):
        title = next(iter(group.findall(nodes.rubric)), None)
        if title is not None and title.astext() == "Unnamed Group":
            title.children = [nodes.Text("Getters")]
            section.remove(group)
            section.append(group)


def tidy(app: Sphinx, doctree: nodes.document) -> None:
    for description in doctree.findall(addnodes.desc):
        if description.get("domain") != "cpp":
            continue
        for block in description.findall(nodes.literal_block):
            block["language"], block["force"] = "cpp", True  # an ellipsis is no C++
        for paragraph in list(description.findall(nodes.paragraph)):
            if _is_of_templates(paragraph):
                paragraph.parent.remove(paragraph)
            else:
                _split_at_throws(paragraph)
        for content in description.findall(addnodes.desc_content):
            _move_getters_last(content)
        for signature in description.findall(addnodes.desc_signature):
            shorten(signature)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("cpp-reference", CppReference)
    app.connect("env-check-consistency", check_all_are_shown)
    app.connect("doctree-read", tidy, priority=400)  # before the contents are made
    return {"parallel_read_safe": False}

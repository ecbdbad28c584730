"""What pages link to: the repository, each other, and their own names."""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

INDEX = "reference/index"
#: A link to a file, or a picture: its text's end, path and fragment.
LINK = re.compile(r"(!\[[^]]*|)\]\(([\w./-]+)(#[\w-]+)?\)")


def _linked(app: Sphinx, text: str, folder: str, page: str) -> str:
    """Text of the repository's `folder` in a page of the repository's folder `page`: pictures and
    pages stay relative, other files are the repository's on the web."""
    top = pathlib.Path(app.srcdir).parent

    def link(match: re.Match[str]) -> str:
        before, path, fragment = match[1], match[2], match[3] or ""
        file = posixpath.normpath(posixpath.join(folder, path))
        if not (top / file).exists():
            return match[0]
        is_page = file.startswith("docs/") and file.endswith(".md")
        if before or is_page:
            return f"{before}]({posixpath.relpath(file, page)}{fragment})"
        return f"]({app.config.repository}/{file}{fragment})"

    return LINK.sub(link, text)


def link_page(app: Sphinx, docname: str, source: list[str]) -> None:
    folder = posixpath.join("docs", posixpath.dirname(docname))
    source[0] = _linked(app, source[0], folder, folder)


def link_included(app: Sphinx, path: pathlib.Path, docname: str, content: list[str]) -> None:
    """Of a file elsewhere in the repository that a page includes."""
    folder = posixpath.dirname(posixpath.normpath(posixpath.join("docs", path.as_posix())))
    page = posixpath.join("docs", posixpath.dirname(docname))
    content[0] = _linked(app, content[0], folder, page)


def _entry(app: Sphinx, page: str, docname: str) -> nodes.list_item:
    """A link to a page, and its first paragraph, which has no links."""
    link = nodes.reference("", "", *app.env.titles[page].deepcopy().children, internal=True)
    link["refuri"] = app.builder.get_relative_uri(docname, page)
    purpose = next(iter(app.env.get_doctree(page).findall(nodes.paragraph))).deepcopy()
    return nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(": "), *purpose.children))


def describe_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Says in the reference's index what each page is about."""
    if docname == INDEX:
        for tree in list(doctree.findall(addnodes.toctree)):
            pages = [page for _, page in tree["entries"]]
            entries = [_entry(app, page, docname) for page in pages]
            tree.parent.replace(tree, nodes.bullet_list("", *entries))


def shorten_contents(app: Sphinx, doctree: nodes.document) -> None:
    """Overloads stand once in the contents at the right, and names without namespaces."""
    for items in app.env.tocs[app.env.current_document.docname].findall(nodes.bullet_list):
        seen: set[tuple[str, bool]] = set()
        for item in [each for each in items.children if isinstance(each, nodes.list_item)]:
            for literal in item.children[0].findall(nodes.literal):
                literal.children = [nodes.Text(literal.astext().split("::")[-1])]
            link = next(iter(item.findall(nodes.reference)))
            name = link.astext(), link["anchorname"].startswith("#_CPP")
            if name in seen and len(item.children) == 1:
                items.remove(item)
            seen.add(name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository", "", "env", str)
    app.connect("source-read", link_page)
    app.connect("include-read", link_included)
    app.connect("doctree-read", shorten_contents, priority=900)  # after they are made
    app.connect("doctree-resolved", describe_pages)
    return {"parallel_read_safe": False}

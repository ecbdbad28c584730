"""Links from the guides into the repository, and what the reference's index says of each page."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

INDEX = "reference/index"


def link_repository(app: Sphinx, docname: str, source: list[str]) -> None:
    """Of the guides: `../` is the repository's top."""
    if "/" not in docname:
        source[0] = source[0].replace("](../", f"]({app.config.repository}/")


def describe_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Puts each page's first paragraph beside its link."""
    if docname != INDEX:
        return
    for entry in doctree.findall(addnodes.compact_paragraph):
        link = next(iter(entry.findall(nodes.reference)), None)
        if link is not None and isinstance(entry.parent, nodes.list_item):
            page = app.env.get_doctree(f"reference/{link['refuri'].removesuffix('.html')}")
            purpose = next(iter(page.findall(nodes.paragraph)))
            entry += [nodes.Text(": "), *purpose.deepcopy().children]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository", "", "env", str)
    app.connect("source-read", link_repository)
    app.connect("doctree-resolved", describe_pages, priority=900)
    return {"parallel_read_safe": False}

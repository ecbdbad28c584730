"""Python's signatures as one reads them. A public name that no page has is a warning."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import torchamp
from torchamp import amp, ops, optimizers

#: What pybind11 writes, and the types that the stubs have.
WORDS = {
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "typing.SupportsInt | typing.SupportsIndex": "int",
    ": object": ": Sequence[Tensor | None]",
    "torchamp._C.ops.": "",
    "torchamp._C.": "",
    "torch.Tensor": "Tensor",
    "collections.abc.": "",
    "<Check.BOTH: 3>": "Check.BOTH",
}
logger = logging.getLogger(__name__)


def plain(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    if signature is None:
        return None
    for long, short in WORDS.items():
        signature = signature.replace(long, short)
        returns = returns and returns.replace(long, short)
    return signature, returns


#: A paragraph of arguments: `name: what it is`, in our docstrings without a header.
ARGUMENT = re.compile(r"\w+(, \w+)*: \S")


def sections_of(lines: list[str]) -> list[str]:
    """Our docstrings as Google style: headers over arguments, directives over code."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        paragraphs[-1].append(line) if line else paragraphs.append([])
    result: list[str] = []
    for paragraph in paragraphs:
        head = paragraph[0] if paragraph else ""
        begins = [line for line in paragraph if not line.startswith(" ")]
        if begins and all(ARGUMENT.match(line) for line in begins):
            result += ["Args:", *(f"    {line}" for line in paragraph), ""]
        elif head.startswith("    "):
            result += [".. code-block:: python", "", *paragraph, ""]
        else:
            result += [*paragraph, ""]
    return result


def as_rest(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Also, `unscale_` is a name, not a link."""
    lines[:] = sections_of(lines)
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part) for part in parts[::2]]
        lines[i] = "`".join(parts)


def public_names() -> set[str]:
    modules = (torchamp, amp, ops, optimizers)
    names = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    submodules = {module.__name__ for module in modules[1:]}
    aliases = {f"torchamp.{name}" for name in torchamp.__all__ if name in amp.__all__}
    return names - submodules - aliases


def check_all_are_shown(app: Sphinx, env: BuildEnvironment) -> None:
    for name in sorted(public_names() - env.domaindata["py"]["objects"].keys()):
        logger.warning("no page has the Python name %s", name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", plain)
    app.connect("autodoc-process-docstring", as_rest, priority=400)  # before napoleon
    app.connect("env-check-consistency", check_all_are_shown)
    return {"parallel_read_safe": False}

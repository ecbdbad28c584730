"""Python's signatures as one reads them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

#: What pybind11 writes, and the types that the stubs have.
WORDS = {
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "torchamp._C.ops.": "",
    "torchamp._C.": "",
    "torch.nn.modules.module.Module": "torch.nn.Module",  # as torch's documentation has them
    "torch.optim.optimizer.Optimizer": "torch.optim.Optimizer",
    "collections.abc.": "",
    "_serialize.File": "str | os.PathLike | BinaryIO",
    "ProcessGroups": "ProcessGroup | Sequence[ProcessGroup]",
    "Rule | Iterable[Rule]": "str | type | Callable | Iterable[str | type | Callable]",
    "<Check.BOTH: 3>": "Check.BOTH",
}
#: In the ops, which take lists as pybind11 objects.
LISTS = ": object", ": Sequence[torch.Tensor | None]"
#: Methods' own argument, and a default whose text is an address.
SELF = re.compile(r"(?<=\()self: \w+(, )?")
DEFAULT = re.compile(r"<(?:\w+\.)*(\w+) object at 0x\w+>")
#: A class of torch, of which only the last part is to be shown.
TORCH = re.compile(r"(?<![~\w.])(?=torch\.(?:\w+\.)*[A-Z])")


def _plain(text: str) -> str:
    for long, short in WORDS.items():
        text = text.replace(long, short)
    return TORCH.sub("~", DEFAULT.sub(r"\1()", SELF.sub("", text)))


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
    analyzer = ModuleAnalyzer.for_module("torchamp.amp._initialize")
    analyzer.analyze()
    del analyzer.overloads["initialize"]


def highlight(app: Sphinx, doctree: nodes.document) -> None:
    """Examples in docstrings are Python."""
    for description in doctree.findall(addnodes.desc):
        if description["domain"] == "py":
            for block in description.findall(nodes.literal_block):
                block["language"] = "python"


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("builder-inited", drop_overloads)
    app.connect("autodoc-process-signature", plain)
    app.connect("doctree-read", highlight)
    return {"parallel_read_safe": False}

"""Sphinx's settings. `make docs` writes the site to out/docs; see build_tools/make_docs.sh."""

import pathlib
import sys

import torchamp

sys.path.insert(0, str(pathlib.Path(__file__).parent / "_extensions"))

project = "torchamp"
author = "The torchamp authors"
copyright = "2026, the torchamp authors"
release = torchamp.__version__
html_title = f"torchamp {release}"

extensions = [
    "breathe",
    "cpp_reference",
    "myst_parser",
    "python_reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["_*"]

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False

breathe_projects = {"torchamp": str(pathlib.Path(__file__).parents[1] / "out" / "docs-xml" / "xml")}
breathe_default_project = "torchamp"
breathe_default_members = ("members",)
breathe_show_include = False
cpp_maximum_signature_line_length = 88

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
default_role = "code"  # docstrings write `code`
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

suppress_warnings = [
    "duplicate_declaration.cpp",  # FusedAdagradOptions has two serialize()
    "misc.highlighting_failure",  # an ellipsis in an example
]

REPOSITORY = "https://github.com/torchamp/torchamp/tree/main"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3


def link_repository(app, docname: str, source: list[str]) -> None:
    """Of the guides: `../` is the repository's top."""
    if "/" not in docname:
        source[0] = source[0].replace("](../", f"]({REPOSITORY}/")


def setup(app) -> None:
    app.connect("source-read", link_repository)

"""Sphinx's settings. `make docs` writes the site to out/docs; see build_tools/make_docs.sh."""

import os
import pathlib
import sys

import torchamp

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "torchamp"
author = "The torchamp authors"
copyright = "2026, the torchamp authors"
release = torchamp.__version__.partition("+")[0]
html_title = f"torchamp {release}"
repository = "https://github.com/torchamp/torchamp/tree/main"

extensions = [
    "breathe",
    "cpp_reference",
    "myst_parser",
    "pages",
    "python_reference",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_*"]
smartquotes_action = "De"  # not quotes: "O2" is a value

html_theme = "furo"
html_copy_source = False
html_css_files = ["site.css"]
html_show_sphinx = False
html_static_path = ["_static"]
html_theme_options = {
    "source_repository": "https://github.com/torchamp/torchamp/",
    "source_branch": "main",
    "source_directory": "docs/",
}
toc_object_entries_show_parents = "hide"

breathe_projects = {"torchamp": str(HERE.parent / "out" / "docs-xml" / "xml")}
breathe_default_project = "torchamp"
breathe_default_members = ("members",)
breathe_show_include = False
cpp_maximum_signature_line_length = 88

add_module_names = False
autoclass_content = "both"  # pybind11 writes a class's signature there
autodoc_member_order = "bysource"
autodoc_mock_imports = ["lightning", "pytorch_lightning"]  # of AmpPrecision
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_param = False  # "betas, eps: as in torch.optim.Adam" is one entry
napoleon_custom_sections = [("Members", "params_style")]  # of pybind11's enumerations
highlight_language = "none"  # of output and commands
default_role = "code"  # docstrings write `code`
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# Types of torch and Python link to their own documentation where the site is published: that takes
# the network.
if os.environ.get("TORCHAMP_DOCS_ONLINE") == "1":
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

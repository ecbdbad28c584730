#!/bin/sh
# Writes the guides and the reference of C++ and Python to out/docs: make_docs.sh <a python with torchamp>
#
# Warnings are errors. So are undocumented public items of the headers, and public names of either language
# that no page has. TORCHAMP_DOCS_ONLINE=1 links to the documentation of torch and Python, which takes the
# network.
set -eu
. build_tools/packages.sh

python=$1

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  { say "the documentation needs Python 3.11 or newer, for Sphinx 9" >&2; exit 1; }
command -v doxygen >/dev/null || require_packages doxygen
"$python" -m pip install --quiet 'breathe==5.*' furo==2025.12.19 'myst-parser==5.*' 'sphinx==9.*' \
  'sphinx-copybutton==0.5.*' 'sphinx-design==0.8.*'
rm -rf out/docs out/docs-xml
mkdir -p out/docs-xml
doxygen docs/Doxyfile
"$python" -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir out/docs-xml/doctrees docs out/docs
say "the documentation is in out/docs/index.html"

#!/bin/sh
# Writes the reference of C++ and Python to out/docs: make_docs.sh <a python with torchamp>
#
# Undocumented public items of the headers, broken references, and types that pdoc cannot read are errors.
set -eu
. build_tools/packages.sh

python=$1
out=out/docs

command -v doxygen >/dev/null || require_packages doxygen
rm -rf "$out"
mkdir -p "$out"
TORCHAMP_VERSION=$("$python" -c 'import torchamp; print(torchamp.__version__)') doxygen docs/Doxyfile

"$python" -m pip install --quiet 'pdoc==15.*'
"$python" -W error::UserWarning:pdoc.doc_types -m pdoc torchamp --output-directory "$out/python"
echo "torchamp: the reference is in $out/index.html"

#!/bin/sh
# Writes the source archive to dist, and checks that an index would take it: make_sdist.sh <python>
set -eu

python=$1

"$python" -m pip install --quiet twine
mkdir -p dist
PYTHONPATH=build_tools "$python" -c 'import torchamp_build as b; print(b.build_sdist("dist"))'
"$python" -m twine check --strict dist/torchamp-*.tar.gz

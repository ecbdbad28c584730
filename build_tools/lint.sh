#!/bin/sh
# Checks the formatting of the C++, CUDA and Python sources, checks the library with clang-tidy, lints Python and checks its types: lint.sh <python>
set -eu

python=$1

"$python" -m pip install --quiet 'clang-format==14.*' 'clang-tidy==14.*' 'ruff==0.17.*' 'mypy==2.*' 'pyright[nodejs]==1.1.414'
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs "$(dirname "$python")/clang-format" --dry-run -Werror
"$python" -m ruff format --check .
"$python" -m ruff check .
"$python" -m mypy
"$python" -m mypy.stubtest torchamp._C
PATH="$(dirname "$python"):$PATH" "$python" build_tools/check_types.py
build_tools/tidy.sh "$python"

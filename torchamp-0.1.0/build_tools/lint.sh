#!/bin/sh
# Checks the formatting of the C++, CUDA and Python sources, checks the library with clang-tidy, lints
# Python and checks its types, and checks the files that GitHub reads: lint.sh <python>
set -eu

python=$1
PATH=$(dirname "$python"):$PATH

"$python" -m pip install --quiet 'check-jsonschema==0.39.*' 'clang-format==14.*' 'clang-tidy==14.*' 'ruff==0.17.*' 'mypy==2.*' 'pyright[nodejs]==1.1.414'
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror
"$python" -m ruff format --check .
"$python" -m ruff check .
"$python" -m mypy
"$python" -m mypy.stubtest torchamp._C
"$python" build_tools/check_types.py
check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
build_tools/tidy.sh "$python"

#!/bin/sh
# Checks the formatting of the C++, CUDA and Python sources, and Python's for mistakes: lint.sh <python>
set -eu

python=$1
clang_format=$(command -v clang-format || command -v clang-format-14 || true)

if [ -z "$clang_format" ]; then
  echo "torchamp: clang-format is missing: sudo apt-get install -y clang-format" >&2
  exit 1
fi
git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs "$clang_format" --dry-run -Werror

"$python" -m pip install --quiet 'ruff==0.17.*'
"$python" -m ruff format --check .
"$python" -m ruff check .

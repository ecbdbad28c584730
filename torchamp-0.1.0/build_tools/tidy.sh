#!/bin/sh
# Runs clang-tidy on the library, in one translation unit as it is built: tidy.sh <a python with torch and clang-tidy>
set -eu

python=$1
unity=build/CMakeFiles/torchamp_objects.dir/Unity/unity_core_cxx.cxx

[ -f "$unity" ] || { echo "torchamp: expected $unity, which \`make setup\` generates" >&2; exit 1; }
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
"$(dirname "$python")/clang-tidy" --quiet "$unity" -- \
  -std=c++17 -Wall -Wextra -Icsrc -Iinclude -Ibuild/generated -isystem "$torch/include" \
  -isystem "$torch/include/torch/csrc/api/include" \
  -isystem "$(${CXX:-g++} -print-file-name=include)"

#!/bin/sh
# Runs clang-tidy on the library and its tools, each in one translation unit as it is built: tidy.sh <a python
# with torch and clang-tidy>
set -eu

python=$1
units="build/CMakeFiles/torchamp_objects.dir/Unity/unity_core_cxx.cxx
  build/CMakeFiles/torchamp_tools.dir/Unity/unity_0_cxx.cxx
  build/CMakeFiles/torchamp_cuda_tools.dir/Unity/unity_0_cxx.cxx"

for unit in $units; do
  [ -f "$unit" ] || { echo "torchamp: expected $unit, which \`make setup\` generates" >&2; exit 1; }
done
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
"$(dirname "$python")/clang-tidy" --quiet $units -- \
  -std=c++17 -Wall -Wextra -Icsrc -Icsrc/tools -Iinclude -Ibuild/generated -isystem "$torch/include" \
  -isystem "$torch/include/torch/csrc/api/include" \
  -isystem "$(${CXX:-g++} -print-file-name=include)"

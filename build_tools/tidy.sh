#!/bin/sh
# Runs clang-tidy on the library and its tools, in few translation units as they are built: tidy.sh <a python with
# torch and clang-tidy>. clang 14 does not read g++'s intrinsics, so csrc/cpu is left out.
set -eu

python=$1
units="build/CMakeFiles/torchamp_objects.dir/Unity/unity_core_cxx.cxx
  build/CMakeFiles/torchamp_tools.dir/Unity/unity_0_cxx.cxx
  build/CMakeFiles/torchamp_cuda_tools.dir/Unity/unity_0_cxx.cxx
  csrc/cuda/*.cpp"

for unit in $units; do
  [ -f "$unit" ] || { echo "torchamp: expected $unit, which \`make setup\` generates" >&2; exit 1; }
done
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
"$(dirname "$python")/clang-tidy" --quiet $units -- \
  -std=c++17 -Wall -Wextra -Wexit-time-destructors -Icsrc -Icsrc/tools -Iinclude -Ibuild/generated \
  -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
  -isystem "$(${CXX:-g++} -print-file-name=include)"

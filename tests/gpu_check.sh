#!/usr/bin/env bash
# Builds torchamp on a machine with a GPU and runs everything that needs one: the C++ and Python
# tests, the ops on each rung of kernels, a captured graph, and the bandwidth of each op against a
# copy's. It takes nothing from the network: torch, pytest and hypothesis are those of PYTHON,
# GoogleTest's source is the folder GTEST_SOURCE.
#
#   PYTHON=python3 GTEST_SOURCE=.gtest MAX_JOBS=16 tests/gpu_check.sh
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
GTEST_SOURCE=${GTEST_SOURCE:-}
[ -z "$GTEST_SOURCE" ] && [ -d .gtest ] && GTEST_SOURCE=$PWD/.gtest
JOBS=${MAX_JOBS:-$(nproc)}
OUT=$PWD/out/gpu
BUILD=$OUT/build
mkdir -p "$OUT"

export PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH}
failed=()

# step NAME SECONDS COMMAND...: runs it and notes whether it failed or took longer.
step() {
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  printf '\n== %s\n' "$name"
  timeout "$limit" "$@"
  status=$?
  [ $status -eq 0 ] || failed+=("$name")
  printf '== %s: status %d after %d s\n' "$name" $status $((SECONDS - begin))
  return $status
}

require_card() {
  "$PYTHON" - <<'PYTHON_END'
import torch

assert torch.cuda.is_available(), f"gpu-check needs a GPU, but torch {torch.__version__} sees none"
print(torch.cuda.get_device_name(), "· torch", torch.__version__, "· CUDA", torch.version.cuda)
PYTHON_END
}

configure() {
  cmake -S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DTORCHAMP_BUILD_TESTS=ON \
    -DPython3_EXECUTABLE="$(command -v "$PYTHON")" -DTORCHAMP_GTEST_SOURCE_DIR="$GTEST_SOURCE"
}

# The emulation stands in for a card where there is none, so it is left out here.
cpp_tests() { ctest --test-dir "$BUILD" --output-on-failure -j "$JOBS" -E '^(emulation|planted)' "$@"; }

python_tests() { "$PYTHON" -m pytest -q -p no:cacheprovider "$@"; }

rung() {
  export TORCHAMP_KERNELS=$1
  cpp_tests -R '^test_ops' &&
    python_tests tests/gpu tests/python/test_ops.py tests/python/test_ops_random.py
}

captured_example() {
  local folder=$BUILD/examples/cpp/cuda_graph
  cmake -S . -B "$BUILD" -DTORCHAMP_BUILD_EXAMPLES=ON &&
    cmake --build "$BUILD" --target cuda_graph --parallel "$JOBS" &&
    "$folder/cuda_graph" --device cuda --out "$OUT/cuda_graph.csv"
}

steps() {
  "$PYTHON" benchmarks/python/bench_step.py --device cuda --json "$OUT/steps.json" &&
    "$PYTHON" benchmarks/python/report.py "$OUT/steps.json"
}

bandwidth() {
  "$PYTHON" benchmarks/python/bench_ops.py --device cuda --json "$OUT/bench.json" &&
    "$PYTHON" benchmarks/python/report.py "$OUT/bench.json"
}

export -f cpp_tests python_tests rung bandwidth steps captured_example configure require_card
export PYTHON GTEST_SOURCE JOBS OUT BUILD

step "card" 60 bash -c require_card || exit 1
step "configure" 60 bash -c configure || exit 1
step "build" 200 cmake --build "$BUILD" --parallel "$JOBS" || exit 1
step "C++ tests" 120 bash -c cpp_tests
step "Python tests" 180 bash -c 'python_tests tests/python tests/gpu'
for kernels in aot nvrtc aten; do
  step "rung $kernels" 90 bash -c "rung $kernels"
done
step "captured example" 100 bash -c captured_example
step "whole steps" 100 bash -c steps
step "bandwidth" 90 bash -c bandwidth

printf '\n== gpu-check took %d s\n' "$SECONDS"
if [ ${#failed[@]} -gt 0 ]; then
  printf '== FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "== all passed"

#!/bin/sh
# Builds and runs the C++ tests with the address and undefined-behaviour sanitizers, then runs some tests
# of the normal build under valgrind: sanitize.sh [<jobs> [<test>...]]
#
# Without names: every test under the sanitizers, and a few short ones under valgrind.
set -eu

jobs=${1:-2}
[ $# -gt 0 ] && shift
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
tests=${*:-$(find tests/cpp -name 'test_*.cpp' -exec basename {} .cpp \; | sort)}
short=${*:-test_loss_scaler test_ops_scale test_ops_unscale test_scale_loss test_serialize}

cmake -S . -B build-sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS="$flags" \
  -DTORCHAMP_USE_CUDA=OFF -DTORCHAMP_BUILD_PYTHON=OFF -DTORCHAMP_BUILD_TESTS=ON
cmake --build build-sanitize --parallel "$jobs" --target $tests
for test in $tests; do
  echo "torchamp: $test under the sanitizers"
  build-sanitize/tests/"$test" --gtest_brief=1
done

if ! command -v valgrind >/dev/null; then
  echo "torchamp: no valgrind, so nothing was run under it: sudo apt-get install -y valgrind"
  exit
fi
cmake -S . -B build -DTORCHAMP_BUILD_TESTS=ON
cmake --build build --parallel "$jobs" --target $short
for test in $short; do
  echo "torchamp: $test under valgrind"
  OMP_NUM_THREADS=1 valgrind --quiet --error-exitcode=1 --suppressions=tests/valgrind.supp \
    --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    build/tests/"$test" --gtest_brief=1
done

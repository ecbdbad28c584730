#!/bin/sh
# Builds and runs the C++ tests, then the Python tests, with the python on PATH. The Python tests run
# even if C++ tests fail. The last lines give the ten slowest of each part, and the time of each.
#
#   MAX_JOBS=2 GTEST_SOURCE=<folder> run_tests.sh         all but the soak tests
#   MAX_JOBS=2 GTEST_SOURCE=<folder> run_tests.sh soak    the soak tests
set -eu
. build_tools/packages.sh

jobs=${MAX_JOBS:-$(nproc)}
if [ "${1:-}" = soak ]; then
  soak=ON label='-L soak' mark=soak
else
  soak=OFF label='-LE soak' mark='not soak'
fi
results=out/tests/python.xml
times=
failed=

# Optional: the soak tests, and all where there is no nvcc, execute what NVRTC compiles.
lay_nvrtc() {
  [ -d build/nvrtc ] ||
    python -m pip install --quiet --no-deps --target build/nvrtc 'nvidia-cuda-nvrtc==13.*' ||
    say "no nvidia-cuda-nvrtc: what NVRTC compiles is not executed"
}

# Optional: the soak tests train what these have, in a folder where no other test finds them.
lay_libraries() {
  [ ! -d build/libraries ] || return 0
  torchvision=$(python -c 'import torch; minor = int(torch.__version__.split(".")[1])
print("torchvision==0.%d.*" % (minor + 15))')
  python -m pip install --quiet --target build/libraries 'transformers==5.24.*' \
    'diffusers==0.42.*' psutil lightning-utilities &&
    python -m pip install --quiet --no-deps --target build/libraries \
      "$torchvision" 'pytorch_optimizer==4.1.*' 'timm==1.0.*' 'accelerate==1.15.*' \
      'pytorch-ignite==0.5.*' 'torchao==0.18.*' 'lightning==2.6.*' torchmetrics torch-ema ema-pytorch ||
    say "not all libraries could be installed: what lacks one is not trained"
  # The index's torchvision loads beside the index's torch alone, and others import it where it is.
  PYTHONPATH=build/libraries python -c 'import torchvision' 2>/dev/null || {
    rm -rf build/libraries/torchvision*
    say "torchvision does not load with this torch: its detectors and timm's optimizers are not trained"
  }
}

build() {
  [ "$soak" = OFF ] || lay_libraries
  if [ "$soak" = ON ] || ! command -v nvcc >/dev/null; then lay_nvrtc; fi
  googletest=$(build_tools/find_googletest.sh "${GTEST_SOURCE:-}")
  cmake -S . -B build -DTORCHAMP_BUILD_TESTS=ON -DTORCHAMP_SOAK_TESTS=$soak \
    -DTORCHAMP_BUILD_EXAMPLES=OFF \
    -DTORCHAMP_ALLOW_DOWNLOAD=ON -DTORCHAMP_GTEST_SOURCE_DIR="$googletest" &&
    cmake --build build --parallel "$jobs"
}

# Waiting threads must not spin: other tests need the cores.
cpp_tests() { (cd build && OMP_WAIT_POLICY=passive ctest $label --output-on-failure --parallel "$jobs"); }

# The workers share the cores, so each uses one thread.
python_tests() {
  if [ "$jobs" -gt 1 ] && python -c 'import xdist' 2>/dev/null; then
    OMP_NUM_THREADS=1 python -m pytest -rs -m "$mark" --junitxml "$results" --numprocesses "$jobs" --dist loadgroup
  else
    python -m pytest -rs -m "$mark" --junitxml "$results"
  fi
}

# part <name> <command>: runs it, and records its time and whether it failed.
part() {
  say "$1"
  begin=$(date +%s)
  "$2" || failed="$failed $2"
  times="$times${times:+, }$1 $(($(date +%s) - begin)) s"
}

began=$(date +%s)
part "build" build
if [ -z "$failed" ]; then
  part "C++ tests" cpp_tests
  part "Python tests" python_tests
fi
python build_tools/slowest.py "$began" || :
if [ -n "$failed" ]; then
  say "$times: FAILED:$failed"
  exit 1
fi
[ "$soak" = ON ] || python build_tools/tested_with.py record
say "$times: all passed"

#!/bin/sh
# On another Linux, compiles torchamp for Linux on ARM, with the tests of its kernels, ops and grads, and
# runs these in an emulator: PYTHON=<python> MAX_JOBS=2 arm.sh
#
# PYTHON, which has torch, downloads, and its torch compiles tests/bits for this processor. Everything is in
# build/arm, where then `run <program> …` runs a program for ARM, `python …` Python with torch and torchamp,
# and bits and bits.here are what tests/bits prints on both. Ends with 77 where something cannot be had.
set -eu
. build_tools/packages.sh

python=${PYTHON:-python3}
jobs=${MAX_JOBS:-$(nproc)}
folder=$PWD/build/arm
root=$folder/root  # the files of Debian's packages for ARM
site=$folder/site  # torch for ARM, and what it imports
torch=2.9.1
programs='tests_fused tests_ops tests_scale_loss tests_others'
# What takes minutes in an emulator, and depends on no processor: scalars, and long sequences of events.
left_out='*TakesLearningRates*:*ReadsHyperparameters*:*MultipliesGrads*:*Streams*'
events=2

unavailable() {
  say "$*" >&2
  exit 77
}

lay_tools() {
  command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-g++ >/dev/null && return
  set -- qemu-user g++-aarch64-linux-gnu binutils-aarch64-linux-gnu
  install_packages "$@" ||
    unavailable "expected an emulator and a compiler for ARM, got none: sudo apt-get install -y $*"
}

# apt-get for packages for ARM, with lists and a cache of its own: the system's stay as they are.
arm_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none -o Debug::NoLocking=1 \
    -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status" \
    -o Dir::Cache="$folder/apt" "$@" >&2
}

# Debian keeps what depends on the processor of pyconfig.h in a folder that it includes from /usr/include.
lay_python() {
  [ ! -x "$folder/python" ] || return 0
  mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$root"
  : >"$folder/apt/status"
  { arm_apt update && arm_apt install -y --no-install-recommends --download-only \
    python3 libpython3-dev libstdc++6; } ||
    unavailable "expected Debian's Python for ARM, got none: its packages could not be downloaded"
  for package in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
  [ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
  cp "$root"/usr/include/aarch64-linux-gnu/python3.*/pyconfig.h "$root"/usr/include/python3.*/
  printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" "$@"\n' "$root" >"$folder/run"
  printf '#!/bin/sh\nPYTHONNOUSERSITE=1 PYTHONPATH="%s" exec "%s" "%s" "$@"\n' \
    "$folder/tree/python:$site" "$folder/run" "$root/usr/bin/python3" >"$folder/python"
  chmod +x "$folder/run" "$folder/python"
}

lay_torch() {
  [ ! -d "$site" ] || return 0
  version=$(basename "$root"/usr/include/python3.* | sed 's/python//')
  "$python" -m pip install --quiet --no-deps --target "$site.part" --python-version "$version" \
    --implementation cp --only-binary=:all: \
    --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 "torch==$torch" \
    typing_extensions sympy mpmath networkx jinja2 markupsafe fsspec filelock >&2 ||
    unavailable "expected torch $torch for ARM, got none: its packages could not be downloaded"
  mv "$site.part" "$site"
}

compile() {
  googletest=$(build_tools/find_googletest.sh "${GTEST_SOURCE:-}")
  set -- -DTORCHAMP_USE_CUDA=OFF -DTORCHAMP_BUILD_TESTS=ON -DTORCHAMP_ALLOW_DOWNLOAD=ON \
    -DTORCHAMP_GTEST_SOURCE_DIR="$googletest"
  cmake -S . -B "$folder/tree" "$@" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
    -DTORCHAMP_TORCH_ROOT="$site/torch" -DTORCHAMP_TEST_ROOMS='math;cpu;ops;scaler;core' \
    -DPython3_INCLUDE_DIR="$(echo "$root"/usr/include/python3.*)"
  cmake --build "$folder/tree" --parallel "$jobs" --target torchamp_python kernel_bits $programs
  cmake -S . -B "$folder/here" "$@" -DPython3_EXECUTABLE="$(command -v "$python")"
  cmake --build "$folder/here" --parallel "$jobs" --target kernel_bits
}

# Each program in two shards, the longest first. Waiting threads must not spin: the emulator needs the cores.
run_tests() {
  "$folder/here/tests/kernel_bits" >"$folder/bits.here"
  "$folder/run" "$folder/tree/tests/kernel_bits" >"$folder/bits"
  for program in $programs; do echo "$program 0" && echo "$program 1"; done |
    TORCHAMP_EVENTS=$events GTEST_FILTER="-$left_out" GTEST_TOTAL_SHARDS=2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
      xargs -P "$jobs" -L 1 sh -c 'GTEST_SHARD_INDEX=$2 "$0/run" "$0/tree/tests/$1" --gtest_brief=1 \
        >"$0/$1.$2.log" 2>&1' "$folder" || failed=yes
  for program in $programs; do
    say "$program"
    cat "$folder/$program.0.log" "$folder/$program.1.log"
  done
}

[ "$(uname -m)" != aarch64 ] || unavailable "expected another processor than ARM: here make test is for ARM"
failed=
began=$(date +%s)
lay_tools
lay_python
lay_torch
compile
say "compiled for ARM after $(($(date +%s) - began)) s"
run_tests
say "ran for ARM after $(($(date +%s) - began)) s${failed:+: FAILED}"
[ -z "$failed" ]

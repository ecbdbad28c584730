#!/bin/sh
# Prints the folder of GoogleTest's sources, of Debian's package if need be: find_googletest.sh [<folder>]
#
# Prints nothing where neither is to be had: CMake then looks for an installed GoogleTest, and for a
# release to download.
set -eu
. build_tools/packages.sh

given=${1:-}
debian=${TORCHAMP_GTEST_DEBIAN_DIR:-/usr/src/googletest}

if [ -n "$given" ]; then
  echo "$given"
elif [ -d "$debian" ] || install_packages googletest; then
  echo "$debian"
fi

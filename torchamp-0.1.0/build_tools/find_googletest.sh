#!/bin/sh
# Prints the folder of GoogleTest's sources: find_googletest.sh [<folder>]
#
# Without <folder>, that of Debian's package, installed if necessary and allowed. Prints nothing if there
# is none: CMake then looks for an installed GoogleTest, or downloads a release.
set -eu
. build_tools/packages.sh

given=${1:-}
debian=${TORCHAMP_GTEST_DEBIAN_DIR:-/usr/src/googletest}

if [ -n "$given" ]; then
  echo "$given"
elif [ -d "$debian" ] || install_packages googletest; then
  echo "$debian"
fi

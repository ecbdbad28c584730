# For the other scripts to read: says what happens, and gets Debian's packages where this user may.

say() { echo "torchamp: $*"; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_packages <package>...: its status tells whether they are here now.
install_packages() {
  may_install || return 1
  say "installing Debian's $*" >&2
  { DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null
}

# require_packages <package>...: the same, for what nothing else can stand in for.
require_packages() {
  [ $# -eq 0 ] && return
  install_packages "$@" && return
  say "this machine lacks: $*. On Debian or Ubuntu:" >&2
  echo "    sudo apt-get install -y $*" >&2
  exit 1
}

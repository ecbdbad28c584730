# For the other scripts to source: prints messages, and installs Debian packages if this user may.

say() { echo "torchamp: $*"; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# install_packages <package>...: succeeds if they are installed now.
install_packages() {
  may_install || return 1
  say "installing Debian's $*" >&2
  { DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null
}

# require_packages <package>...: installs them, or prints the command and exits.
require_packages() {
  [ $# -eq 0 ] && return
  install_packages "$@" && return
  say "this machine lacks: $*. On Debian or Ubuntu:" >&2
  echo "    sudo apt-get install -y $*" >&2
  exit 1
}

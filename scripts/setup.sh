#!/usr/bin/env bash
# Brings a machine to the point where every suite can run: compilers, the two cargo components,
# the crates of the lock file, cargo-deny. Does nothing where nothing is missing.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

# need COMMAND PACKAGE: the command is there, or Debian's package brings it.
need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $2 (for $1)"
        [ -n "${refreshed:-}" ] || apt-get update -qq >"$logs/apt.log" 2>&1
        refreshed=1
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >>"$logs/apt.log" 2>&1 ||
            fail "$2 could not be installed: see $logs/apt.log"
        return
    fi
    fail "$1 is missing: install it (Debian: apt-get install $2) and run this again"
}

need cc gcc
need c++ g++
need git git
need pkg-config pkg-config
need cmake cmake
need valgrind valgrind
need python3 python3
command -v cargo >/dev/null || fail "cargo is missing: install Rust 1.95 or newer (https://rustup.rs)"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "python3 is older than 3.11, which the scripts need"

for component in fmt clippy; do
    cargo "$component" --version >/dev/null 2>&1 && continue
    command -v rustup >/dev/null || fail "cargo $component is missing, and so is rustup to install it"
    name=$component
    [ "$component" = fmt ] && name=rustfmt
    rustup component add "$name" >&2
done

cargo fetch --quiet --locked
cargo_deny >/dev/null

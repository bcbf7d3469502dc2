#!/usr/bin/env bash
# Builds the two packages that carry the broca command, from one optimised build:
#
#   target/packages/broca_server-VERSION-….whl    broca-server for Python
#   target/packages/broca-server-VERSION.tgz      @broca/server for Node
#
# What is newer than all that it is made from stays as it is. Without npm only the wheel is built, and that is told.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/python-tools.sh
. "$(dirname "$0")/python-tools.sh"
cd "$root"

packages=$target/packages
binary=$target/ci/broca
mkdir -p "$packages"

# is_fresh PACKAGE SOURCE…: the package is there and newer than every source, folders with all that is in them.
is_fresh() {
    local package=$1
    shift
    [ -e "$package" ] && [ -z "$(find "$@" -type f -newer "$package" -not -path '*/__pycache__/*' -print -quit)" ]
}

# one NAME…: the path if the pattern matched one file, else a path that is not there.
one() { if [ $# = 1 ] && [ -e "$1" ]; then printf '%s\n' "$1"; else printf '%s\n' "$packages/none"; fi; }

# The selection of maturin, so that nothing is compiled twice; cargo decides what has to be compiled.
cargo build --quiet --locked --profile ci --package broca-cli --bin broca

if ! is_fresh "$(one "$packages"/broca_server-*.whl)" "$binary" python/server scripts/server-packages.sh; then
    say "building the wheel of broca-server"
    rm -f "$packages"/broca_server-*.whl
    maturin=$(maturin)
    (cd python/server && CARGO_TARGET_DIR=$target "$maturin" build --profile ci --locked --quiet --out "$packages") >&2
fi
ls "$packages"/broca_server-*.whl

if ! command -v npm >/dev/null; then
    say "npm is missing: @broca/server is not packed"
    exit 0
fi
if ! is_fresh "$(one "$packages"/broca-server-*.tgz)" "$binary" node/server scripts/server-packages.sh; then
    say "packing @broca/server"
    rm -f "$packages"/broca-server-*.tgz
    node node/server/stage.mjs "$binary" "$target/stage/broca-server"
    npm pack --silent --pack-destination "$packages" "$target/stage/broca-server" >"$logs/npm-pack.log" 2>&1 ||
        fail "@broca/server could not be packed: see $logs/npm-pack.log"
fi
ls "$packages"/broca-server-*.tgz

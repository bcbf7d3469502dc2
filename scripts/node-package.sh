#!/usr/bin/env bash
# Builds the Node package with its native part for this machine, as users get it.
#
#   scripts/node-package.sh             target/packages/broca-sdk-VERSION.tgz
#   scripts/node-package.sh --testing   a native part with faults on demand, for the tests: target/packages/testing/broca.node
#
# Does little when nothing has changed.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

packages=$target/packages
mkdir -p "$packages/testing"

case "$(uname -s)" in
    Darwin) library=libbroca_node.dylib ;;
    MINGW* | MSYS* | CYGWIN*) library=broca_node.dll ;;
    *) library=libbroca_node.so ;;
esac

# addon BUILT ADDON: copies what cargo has built, if it is newer. Renamed into place: a program that has the old one loaded
# keeps it.
addon() {
    if [ ! -f "$2" ] || [ "$1" -nt "$2" ]; then
        cp "$1" "$2.new"
        strip -x "$2.new" 2>/dev/null || say "strip is missing: $2 is larger than it need be"
        mv "$2.new" "$2"
    fi
}

if [ "${1:-}" = --testing ]; then
    cargo build --quiet --locked --profile ci -p broca-node --lib --features testing
    addon "$target/ci/$library" "$packages/testing/broca.node"
    echo "$packages/testing/broca.node"
    exit
fi

version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' node/package.json)
tarball=$packages/broca-sdk-$version.tgz
if [ ! -f node/node_modules/.package-lock.json ] || [ node/package-lock.json -nt node/node_modules/.package-lock.json ]; then
    npm ci --prefix node --no-audit --no-fund --silent
    touch node/node_modules/.package-lock.json
fi

cargo build --quiet --locked --release -p broca-node --lib
name=$(node -p '
    const gnu = process.report.getReport().header.glibcVersionRuntime !== undefined;
    const abi = { linux: gnu ? "-gnu" : "-musl", win32: "-msvc" }[process.platform] ?? "";
    `broca.${process.platform}-${process.arch}${abi}.node`')
addon "$target/release/$library" "node/$name"

# newer FILE INPUT…: whether an input is newer than the file, or the file is missing.
newer() {
    local file=$1
    shift
    [ ! -f "$file" ] || [ -n "$(find "$@" -newer "$file" -print -quit)" ]
}

if newer node/dist/index.mjs node/src node/tsconfig.json node/package-lock.json node/esm.mjs; then
    rm -rf node/dist
    node/node_modules/.bin/tsc -p node
    node node/esm.mjs
fi
if newer "$tarball" "node/$name" node/dist node/package.json node/README.md; then
    (cd node && npm pack --silent --pack-destination "$packages" >/dev/null)
fi
echo "$tarball"

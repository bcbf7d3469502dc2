#!/usr/bin/env bash
# Builds the Node package with its native part for this machine: target/packages/broca-sdk-VERSION.tgz, whose path is the
# last line printed. Does little when nothing has changed. BROCA_NODE_PROFILE is the profile of cargo (release).
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"

profile="${BROCA_NODE_PROFILE:-release}"
target="${CARGO_TARGET_DIR:-$root/target}"
packages="$root/target/packages"
version="$(sed -n 's/^  "version": "\(.*\)",$/\1/p' node/package.json)"
tarball="$packages/broca-sdk-$version.tgz"
mkdir -p "$packages"

if [ ! -f node/node_modules/.package-lock.json ] || [ node/package-lock.json -nt node/node_modules/.package-lock.json ]; then
    npm ci --prefix node --no-audit --no-fund --silent
fi

cargo build --quiet --locked --profile "$profile" -p broca-node --lib
folder="$profile"
[ "$profile" = dev ] && folder=debug
case "$(uname -s)" in
    Darwin) library=libbroca_node.dylib ;;
    MINGW* | MSYS* | CYGWIN*) library=broca_node.dll ;;
    *) library=libbroca_node.so ;;
esac
name="$(node -p '
    const gnu = process.report.getReport().header.glibcVersionRuntime !== undefined;
    const abi = { linux: gnu ? "-gnu" : "-musl", win32: "-msvc" }[process.platform] ?? "";
    `broca.${process.platform}-${process.arch}${abi}.node`')"
built="$target/$folder/$library"
addon="node/$name"
if [ ! -f "$addon" ] || [ "$built" -nt "$addon" ]; then
    # Renamed into place: a program that has the old one loaded keeps it.
    cp "$built" "$addon.new"
    strip -x "$addon.new" 2>/dev/null || true
    mv "$addon.new" "$addon"
fi

# newer FILE INPUT…: whether an input is newer than the file, or the file is missing.
newer() {
    local file="$1"
    shift
    [ ! -f "$file" ] || [ -n "$(find "$@" -newer "$file" -print -quit)" ]
}

if newer node/dist/index.mjs node/src node/tsconfig.json node/package-lock.json node/esm.mjs; then
    rm -rf node/dist
    node/node_modules/.bin/tsc -p node
    node node/esm.mjs
fi

if newer "$tarball" "$addon" node/dist node/package.json node/README.md; then
    (cd node && npm pack --silent --pack-destination "$packages" >/dev/null)
fi
echo "$tarball"

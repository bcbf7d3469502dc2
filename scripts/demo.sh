#!/usr/bin/env bash
# The demo: a whole agent session on the bundled service, about a file of yours.
#
#   scripts/demo.sh [FILE]           builds what it needs, then runs it on FILE (README.md by itself)
#   scripts/demo.sh --built [FILE]   runs what a build of the whole workspace has left
#
# Progress goes to the error stream; the session itself is all that is printed.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"

built=
if [ "${1:-}" = --built ]; then
    built=1
    shift
fi
file=${1:-$root/README.md}
cure='Name another: make demo FILE=path'
[ -e "$file" ] || fail "demo: there is no file $file. $cure"
[ ! -d "$file" ] || fail "demo: $file is a folder. $cure"
[ -f "$file" ] || fail "demo: $file is a pipe, socket or device, not a file. $cure"
[ -r "$file" ] || fail "demo: $file cannot be read. $cure"
file=$(cd -- "$(dirname -- "$file")" && pwd)/$(basename -- "$file")

if [ -z "$built" ]; then
    say "building broca (a few minutes the first time) …"
    cargo build --quiet --locked --manifest-path "$root/Cargo.toml" --package broca-cli \
        --bin broca --example demo
fi

cd "$root"
PATH=$target/debug:$PATH exec "$target/debug/examples/demo" "$file"

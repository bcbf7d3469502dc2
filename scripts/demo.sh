#!/usr/bin/env bash
# The demo: a whole agent session on the bundled service, about a file of yours, with a driver in each language.
#
#   scripts/demo.sh [FILE]           builds what it needs, then runs it on FILE (README.md by itself)
#   scripts/demo.sh --built [FILE]   runs what a build of the whole workspace and `make packages` have left
#
# Progress goes to the error stream; the session itself is all that is printed.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/installed.sh
. "$(dirname "$0")/installed.sh"

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

need_python
need_node
need_c
if [ -z "$built" ]; then
    say "building broca (some minutes the first time) …"
    cargo build --quiet --locked --manifest-path "$root/Cargo.toml" --package broca-cli \
        --bin broca --example demo
    for language in python node capi; do
        say "building the package of $language …"
        bash "$root/scripts/$language-package.sh" >"$logs/$language-package.log" ||
            fail "the package of $language could not be built; the lines above say why"
    done
fi

# The drivers lie beside what they import.
drivers=$target/demo
install_python "$drivers/python"
install_node "$drivers/node"
compile_c "$root/examples/demo/driver.c" "$drivers/c/driver"
cp "$root/examples/demo/driver.py" "$drivers/python/driver.py"
cp "$root/examples/demo/driver.mjs" "$drivers/node/driver.mjs"

cd "$root"
PATH=$target/debug:$PATH exec "$target/debug/examples/demo" "$file" "$drivers"

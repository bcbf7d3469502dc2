#!/usr/bin/env bash
# The examples as tests: installs what `make packages` has left as users do, then runs every program of examples/ against a
# `broca serve` of the test's own. Needs a build of the whole workspace, too.
#
#   scripts/examples-test.sh            all of them
#   scripts/examples-test.sh PART…      those whose name contains one of these: "guide: one-result", "README.md", …
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/installed.sh
. "$(dirname "$0")/installed.sh"
cd "$root"

need_python
need_node
need_c
# The folder of the demo, so that nothing is installed twice.
place=$target/demo
install_python "$place/python"
install_node "$place/node"

# built PROGRAM: fails unless it is there.
built() { [ -x "$1" ] || fail "$1 is missing: cargo build --workspace --all-features --all-targets makes it"; }

for name in quickstart approve observe; do
    compile_c "$root/examples/c/$name.c" "$place/c/$name"
    cp "$root/examples/node/$name.mjs" "$place/node/$name.mjs"
    built "$target/debug/examples/$name"
done
compile_c "$root/scripts/relay/relay.c" "$place/c/relay"
cp "$root/scripts/relay/relay.mjs" "$place/node/relay.mjs"
built "$target/debug/relay"
built "$target/debug/examples/attach"
mkdir -p "$place/node/guide"
for folder in "$root"/examples/guide/*/; do
    name=$(basename "$folder")
    compile_c "$folder/main.c" "$place/c/guide-$name"
    cp "$folder/main.mjs" "$place/node/guide/$name.mjs"
    built "$target/debug/guide-$name"
done
exec "$place/python/bin/python" scripts/examples.py "$target/debug" "$place" "$@"

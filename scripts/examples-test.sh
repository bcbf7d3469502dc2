#!/usr/bin/env bash
# The examples as tests: installs what `make packages` has left as users do, then runs every program of examples/ against a
# `broca serve` of the test's own. Needs a build of the whole workspace, too.
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
for name in quickstart approve observe; do
    compile_c "$root/examples/c/$name.c" "$place/c/$name"
    cp "$root/examples/node/$name.mjs" "$place/node/$name.mjs"
    [ -x "$target/debug/examples/$name" ] ||
        fail "$target/debug/examples/$name is missing: cargo build --workspace --all-features --all-targets makes it"
done
exec python3 scripts/examples.py "$target/debug" "$place"

#!/usr/bin/env bash
# Builds the wheel of the Python package, as users get it, into target/packages/.
#
#   scripts/python-package.sh             target/packages/broca_sdk-VERSION-….whl
#   scripts/python-package.sh --testing   the same with faults on demand, for the tests: target/packages/testing/
#
# cargo decides what has to be compiled, so a second run is quick.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/python-tools.sh
. "$(dirname "$0")/python-tools.sh"
cd "$root/python"

out=$target/packages
build=(--release)
if [ "${1:-}" = --testing ]; then
    out=$out/testing
    build=(--profile ci --features testing)
fi
mkdir -p "$out"
maturin=$(maturin)
rm -f "$out"/broca_sdk-*.whl
# An absolute path: build scripts run in other folders.
PYO3_PYTHON=$(command -v python3) CARGO_TARGET_DIR=$target \
    "$maturin" build "${build[@]}" --locked --quiet --out "$out" >&2
ls "$out"/broca_sdk-*.whl

#!/usr/bin/env bash
# What users download and load, against its budget: the compressed wheel, the stripped addon of Node, the stripped
# shared library. Reads what scripts/packages.sh has left.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0

# within WHAT FILE: prints the size; more than the budget is a failure, and so is a file that is missing.
within() {
    local what=$1 file=$2 bytes
    if [ ! -f "$file" ]; then
        say "sizes: $what is missing: run make packages"
        failed=$((failed + 1))
        return
    fi
    bytes=$(stat -L -c %s "$file" 2>/dev/null || stat -L -f %z "$file")
    printf '%-24s %9d bytes of %d\n' "$what" "$bytes" "$size_budget"
    if [ "$bytes" -le "$size_budget" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

within "wheel (compressed)" "$(compgen -G "$target/packages/broca_sdk-*.whl" || true)"
within "addon of Node (stripped)" "$(compgen -G "$root/node/broca.*.node" | head -n 1 || true)"
within "libbroca (stripped)" "$(compgen -G "$target/packages/capi/lib/libbroca.*.dylib" || echo "$target/packages/capi/lib/libbroca.so")"
echo "sizes: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

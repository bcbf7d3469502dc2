#!/usr/bin/env bash
# Runs every fuzz target for a while: FUZZ_SECONDS for each (60 by itself), or only the targets named.
#
# The stable compiler is allowed the one unstable flag that the sanitizer needs, so no other tool chain
# is asked for.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

export RUSTC_BOOTSTRAP=1
tool=$(cargo_fuzz)
# Called as `cargo fuzz` would call it.
fuzz() {
    local verb=$1
    shift
    "$tool" fuzz "$verb" --fuzz-dir core/fuzz "$@"
}

targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(fuzz list)
[ ${#targets[@]} -gt 0 ] || fail "core/fuzz has no target"
# Its own workspace has its own target folder, beside the main one.
export CARGO_TARGET_DIR=$target/fuzz

passed=0
failed=0
for name in "${targets[@]}"; do
    say "== fuzz $name"
    if fuzz run "$name" -- -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -rss_limit_mb=2048 >&2; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "fuzz $name FAILED; the input is in core/fuzz/artifacts/$name"
    fi
done
echo "fuzz: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

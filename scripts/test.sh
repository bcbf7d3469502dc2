#!/usr/bin/env bash
# Everything that shows that the project works, on any machine: installs what is missing, runs every
# suite, prints one line for each and the sum last. Ends with a failure if anything failed.
#
# Long output goes to the logs; what failed is shown here too.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0
skipped=0
lines=()

# suite NAME COMMAND…: runs it and adds up its count, which is the last line of its output that ends
# in `N passed, N failed, N skipped`. No count, or a bad status with no failure counted, is a failure.
suite() {
    local name=$1 status=0 count p=0 f=0 s=0 start=$SECONDS
    shift
    say "== $name"
    # The pipe's status is the suite's: pipefail is on, and tee does not fail.
    "$@" </dev/null | tee "$logs/suite-${name// /-}.log" || status=$?
    count=$(grep -Eo '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$logs/suite-${name// /-}.log" | tail -n 1 || true)
    if [ -n "$count" ]; then
        read -r p _ f _ s _ <<<"$count"
        if [ "$status" != 0 ] && [ "$f" = 0 ]; then f=1; fi
    else
        say "$name: ended with status $status and without a count"
        f=1
    fi
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    lines+=("$(printf '%-14s %5d passed, %3d failed, %3d skipped  (%d s)' "$name" "$p" "$f" "$s" $((SECONDS - start)))")
}

say "== setup"
bash scripts/setup.sh
say "== packages"
bash scripts/packages.sh

suite gate bash scripts/gate.sh
suite gate-selftest bash scripts/gate-selftest.sh
suite rust python3 scripts/rust-tests.py
suite packages bash scripts/sizes.sh
for language in rust python node c; do
    suite "vectors $language" env LANGUAGES=$language bash scripts/vectors.sh
done
suite python bash scripts/python-tests.sh
suite node bash scripts/node-tests.sh
suite c bash scripts/capi-tests.sh
suite examples bash scripts/examples-test.sh
suite demo bash scripts/demo-test.sh
suite conformance python3 scripts/conformance.py
suite docs bash scripts/docs.sh

echo
printf '%s\n' "${lines[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# The demo as a test: it ends well, it is about the file that was named, and it says what is wrong
# with a file that is not there. Runs what the build of the workspace has left.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check SENTENCE COMMAND…: one case; the log is shown if it does not hold.
check() {
    local sentence=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "demo: not so: $sentence"
        cat "$scratch/log" >&2
    fi
    cat "$scratch/log" >>"$logs/demo.log"
}

demo() { timeout "${DEMO_SECONDS:-120}" bash scripts/demo.sh --built "$@" </dev/null; }

ends_well() { demo; }

tells_the_file() {
    local word=quillwort-$RANDOM$RANDOM
    printf 'The password of the garden is %s.\n' "$word" >"$scratch/garden.txt"
    demo "$scratch/garden.txt" | tee "$scratch/said" || return 1
    grep -q "$word" "$scratch/said"
}

refuses_a_missing_file() {
    ! demo "$scratch/nothing.txt" >"$scratch/said" 2>&1 || return 1
    grep -q 'there is no file' "$scratch/said"
}

: >"$logs/demo.log"
check "the demo ends with status 0" ends_well
check "the demo reads the file that was named" tells_the_file
check "a missing file is named, with the cure" refuses_a_missing_file
echo "demo: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# The gate: what every change must pass before anything else is looked at.
#
#   scripts/gate.sh            every step, then `gate: ok`
#   scripts/gate.sh STEP…      only these: fmt lint policy purity versions generated vectors reports tests
#
# Every step runs even if an earlier one failed, so that one run shows all there is to mend.
# GATE_PACKAGE=NAME narrows lint and tests to one crate (the self-test uses it).
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

steps=(fmt lint policy purity versions generated vectors reports tests)

fmt() {
    cargo fmt --all --check
}

lint() {
    local scope=("${workspace[@]}")
    [ -z "${GATE_PACKAGE:-}" ] || scope=(--package "$GATE_PACKAGE" --all-features)
    cargo clippy --quiet "${scope[@]}" --all-targets -- -D warnings
}

# Licences, banned crates, sources: the rules and their reasons are in deny.toml.
policy() {
    local deny
    deny=$(cargo_deny) || return 1
    "$deny" --all-features --log-level error check \
        --allow unused-wrapper --allow duplicate bans licenses sources
}

# Sans-I/O crates stand on nothing that could open a socket, read a clock or draw a random number,
# and no crate that ships holds unsafe code.
purity() {
    python3 scripts/purity.py
}

# The version, like every version of a dependency, is written once: in the workspace's manifest.
versions() {
    python3 scripts/versions.py
}

# What is generated and committed: the header of C, the layout of batches as TypeScript reads it, the programs that the
# guide shows.
generated() {
    cargo run --quiet --locked --package broca-xtask -- header --check &&
        cargo run --quiet --locked --package broca-node --bin layout-ts -- --check &&
        python3 scripts/snippets.py
}

vectors() {
    python3 scripts/vectors-manifest.py --check
}

# Every class of faults that others have met has a test that is there.
reports() {
    python3 scripts/reports.py
}

# The protocol and the wire.
tests() {
    cargo test --quiet --package "${GATE_PACKAGE:-broca-proto}" --all-features
}

main() {
    local wanted=("$@") step known passed=0 failed=()
    [ $# -gt 0 ] || wanted=("${steps[@]}")
    for step in "${wanted[@]}"; do
        known=0
        for candidate in "${steps[@]}"; do [ "$step" != "$candidate" ] || known=1; done
        [ "$known" = 1 ] || fail "no step '$step': there are ${steps[*]}"
        # In a shell of its own, where `set -e` holds: inside an `if` it would not.
        say "gate: $step"
        if bash "$root/scripts/gate.sh" --only "$step"; then
            passed=$((passed + 1))
        else
            failed+=("$step")
            say "gate: $step FAILED"
        fi
    done
    echo "gate: $passed passed, ${#failed[@]} failed, 0 skipped"
    if [ ${#failed[@]} -gt 0 ]; then
        echo "gate: failed at ${failed[*]}"
        exit 1
    fi
    echo "gate: ok"
}

if [ "${1:-}" = --only ]; then
    "$2"
else
    main "$@"
fi

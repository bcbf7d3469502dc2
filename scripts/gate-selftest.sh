#!/usr/bin/env bash
# Proves that the gate can fail: in a copy of the checkout each case breaks one thing, and the step that
# guards it must fail, for that reason and no other.
#
# The copy has a target folder of its own. It must not share the main one: cargo tells builds of the same
# crate apart by times of files, so a broken copy could leave its object files behind as fresh ones.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

cargo_deny >/dev/null
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
passed=0
failed=0

# The checkout as it is now, changes that are not committed included.
git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
    xargs -0 cp -p --parents -t "$copy"
git -C "$copy" init --quiet

# gate STEP: one step of the copy's own gate, on the one crate that the cases break.
gate() {
    (
        cd "$copy"
        PATH=$target/tools/bin:$PATH CARGO_TARGET_DIR=$target/gate-selftest GATE_PACKAGE=broca-proto \
            bash scripts/gate.sh "$1"
    ) >"$logs/gate-selftest.log" 2>&1
}

# verdict SENTENCE HELD: counts one case.
verdict() {
    if [ "$2" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "gate-selftest: not so: $1"
        sed 's/^/    /' "$logs/gate-selftest.log" >&2
    fi
}

# sound STEP: unbroken, the step passes; else what follows would prove nothing.
sound() {
    local held=no
    gate "$1" && held=yes
    verdict "the step $1 passes on the checkout as it is" "$held"
}

# broken STEP REASON FILE…: after the break, the step fails and says why; then the files are restored.
broken() {
    local step=$1 reason=$2 held=no
    shift 2
    if ! gate "$step" && grep -Eq "$reason" "$logs/gate-selftest.log"; then held=yes; fi
    verdict "the step $step fails with '$reason'" "$held"
    for file in "$@" Cargo.lock; do cp -p "$root/$file" "$copy/$file"; done
    # Newer than what the broken build left behind.
    for file in "$@"; do touch "$copy/$file"; done
}

proto=core/proto/src/lib.rs

sound fmt
printf '\npub   fn  crooked( ){ }\n' >>"$copy/$proto"
broken fmt 'Diff in .*lib\.rs' "$proto"

sound lint
printf '\n/// Says nothing.\npub fn hurried(text: &str) -> usize {\n    text.parse().unwrap()\n}\n' >>"$copy/$proto"
broken lint 'unwrap' "$proto"
printf '\n/// Reads a byte.\npub fn daring(byte: &u8) -> u8 {\n    unsafe { core::ptr::read(byte) }\n}\n' >>"$copy/$proto"
broken lint 'usage of an .unsafe. block' "$proto"

sound policy
sed -i 's/^\[dependencies\]$/[dependencies]\ntokio.workspace = true/' "$copy/core/proto/Cargo.toml"
broken policy "crate 'tokio = .*' is explicitly banned" core/proto/Cargo.toml
sed -i 's/^allow = \["MIT", /allow = [/' "$copy/deny.toml"
broken policy 'error\[rejected\]: failed to satisfy license' deny.toml

sound purity
sed -i 's/^\[dependencies\]$/[dependencies]\ngetrandom.workspace = true/' "$copy/core/proto/Cargo.toml"
broken purity 'broca-proto .* stands on getrandom' core/proto/Cargo.toml
sed -i '/^#!\[forbid(unsafe_code)\]$/d' "$copy/$proto"
broken purity 'broca-proto must say #!\[forbid\(unsafe_code\)\]' "$proto"

sound versions
sed -i 's/^version\.workspace = true$/version = "9.9.9"/' "$copy/core/proto/Cargo.toml"
broken versions 'core/proto/Cargo.toml: package.version must be' core/proto/Cargo.toml
sed -i 's/^bytes\.workspace = true$/bytes = "1.0"/' "$copy/core/proto/Cargo.toml"
broken versions 'dependencies.bytes must take its version' core/proto/Cargo.toml

sound vectors
sed -i '1d' "$copy/core/vectors/reports.jsonl"
broken vectors 'reports.jsonl: count is' core/vectors/reports.jsonl

sound reports
sed -i '/^| C07 /d' "$copy/docs/reports.md"
broken reports 'C07 has 0 rows' docs/reports.md
sed -i 's/fn two_calls_with_one_id_run_nothing/fn renamed/' "$copy/core/client/tests/engine_calls.rs"
broken reports 'C45: .*engine_calls\.rs has no test two_calls_with_one_id_run_nothing' core/client/tests/engine_calls.rs

sound tests
printf '\n#[test]\nfn a_broken_promise_is_noticed() {\n    assert_eq!(1, 2);\n}\n' >>"$copy/$proto"
broken tests 'a_broken_promise_is_noticed' "$proto"

echo "gate-selftest: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

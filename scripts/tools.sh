# shellcheck shell=bash disable=SC2034
# Sourced by the other scripts: where things are, and how a missing tool gets there.
#
# Sets `root` (the checkout), `target` (the one folder everything is built in) and `logs`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
logs=$target/logs
mkdir -p "$logs"

# Nothing is compiled twice because every build of the workspace selects the same packages and
# features. A build of one package would resolve other features and compile its dependencies again.
workspace=(--workspace --all-features --locked)

# What a file that users download or load may have, in bytes: small enough to ship inside another program.
size_budget=$((${SIZE_BUDGET_MB:-3} * 1000 * 1000))

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# cargo_tool NAME VERSION: installs a cargo subcommand into the target folder unless this very
# version is there or on the PATH, and prints the path of its program.
cargo_tool() {
    local name=$1 version=$2 place=$target/tools
    local own=$place/bin/$name found
    for found in "$own" "$(command -v "$name" || true)"; do
        if [ -x "$found" ] && "$found" --version 2>/dev/null | grep -qF "$version"; then
            printf '%s\n' "$found"
            return
        fi
    done
    say "installing $name $version from crates.io into $place (once; a few minutes)"
    # A tool that runs for a second is not worth minutes of optimizing.
    if ! CARGO_TARGET_DIR=$place/build CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=0 cargo install --quiet --locked --root "$place" \
        --version "$version" "$name" >"$logs/install-$name.log" 2>&1; then
        tail -n 20 "$logs/install-$name.log" >&2
        fail "$name could not be installed: see $logs/install-$name.log"
    fi
    rm -rf "$place/build"
    printf '%s\n' "$own"
}

cargo_deny() { cargo_tool cargo-deny 0.20.2; }
cargo_fuzz() { cargo_tool cargo-fuzz 0.13.2; }

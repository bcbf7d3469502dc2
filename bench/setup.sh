#!/usr/bin/env bash
# Prepares what contenders in other languages need, in the target folder's `bench`:
#
#   bench/setup.sh LANGUAGE…    python: a virtual environment with the pinned peers, and our wheel if it was built
#                               node:   the programs beside the pinned peers, and our package if it was built
#                               c:      the program, compiled with our library if that was built
#
# `make bench` calls it with the languages of the rows that were asked for. What is there already is
# kept; a package of ours is installed anew, for it may have been built again.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/../scripts/tools.sh"
cd "$root"
place=$target/bench
packages=$target/packages
mkdir -p "$place"

# newest PATTERN: the file that was built last, or nothing.
newest() {
    local files
    files=$(compgen -G "$1") || return 0
    # The names hold no line breaks: they are those of wheels and tarballs.
    xargs -d '\n' ls -t <<<"$files" | head -n 1
}

setup_python() {
    local pins=bench/python/requirements.txt python=$place/venv/bin/python wheel
    # The copy says with which pins the environment was made; it is written last.
    if ! cmp -s "$pins" "$place/venv/requirements.txt"; then
        say "bench: making a Python environment with the peers (once; a minute)"
        rm -rf "$place/venv"
        python3 -m venv "$place/venv"
        "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$pins" \
            >"$logs/bench-python.log" 2>&1 || fail "the Python peers could not be installed: see $logs/bench-python.log"
        cp "$pins" "$place/venv/requirements.txt"
    fi
    wheel=$(newest "$packages/broca_sdk-*.whl")
    if [ -z "$wheel" ]; then
        say "bench: there is no wheel of ours in $packages; rows that need it will not be measured"
        return
    fi
    # Dependencies first and only when missing, then our wheel in any case.
    {
        "$python" -m pip install --quiet --disable-pip-version-check "$wheel" &&
            "$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
    } >"$logs/bench-wheel.log" 2>&1 || fail "$wheel could not be installed: see $logs/bench-wheel.log"
}

setup_node() {
    local folder=$place/node package
    command -v node >/dev/null || fail "node is missing: install Node.js 20 or newer and run this again"
    mkdir -p "$folder"
    if ! cmp -s bench/node/package.json "$folder/pins.json"; then
        say "bench: installing the Node peers (once)"
        rm -rf "$folder/node_modules" "$folder/package-lock.json"
        cp bench/node/package.json "$folder/package.json"
        npm install --prefix "$folder" --no-audit --no-fund --silent >"$logs/bench-node.log" 2>&1 ||
            fail "the Node peers could not be installed: see $logs/bench-node.log"
        cp bench/node/package.json "$folder/pins.json"
    fi
    cp bench/node/*.mjs "$folder/"
    package=$(newest "$packages/broca-sdk-*.tgz")
    if [ -z "$package" ]; then
        say "bench: there is no Node package of ours in $packages; rows that need it will not be measured"
        return
    fi
    npm install --prefix "$folder" --no-audit --no-fund --silent --no-save "$package" >"$logs/bench-package.log" 2>&1 ||
        fail "$package could not be installed: see $logs/bench-package.log"
}

setup_c() {
    local folder=$place/c library=$packages/capi/lib flags
    if [ ! -f "$library/pkgconfig/broca.pc" ]; then
        say "bench: there is no C library of ours in $packages; rows that need it will not be measured"
        return
    fi
    command -v cc >/dev/null || fail "cc is missing: install a C compiler (Debian: apt-get install gcc) and run this again"
    command -v pkg-config >/dev/null ||
        fail "pkg-config is missing: install it (Debian: apt-get install pkg-config) and run this again"
    mkdir -p "$folder"
    flags=$(PKG_CONFIG_PATH=$library/pkgconfig pkg-config --cflags --libs broca)
    # shellcheck disable=SC2086 # one word for each flag
    cc -std=c99 -O2 -Wall -Wextra -Werror -o "$folder/events" bench/c/events.c $flags "-Wl,-rpath,$library" \
        2>"$logs/bench-c.log" || fail "bench/c/events.c could not be compiled: see $logs/bench-c.log"
}

for language in "$@"; do
    case $language in
        python) setup_python ;;
        node) setup_node ;;
        c) setup_c ;;
        *) fail "nothing is known about the language '$language'" ;;
    esac
done

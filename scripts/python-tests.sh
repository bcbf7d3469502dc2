#!/usr/bin/env bash
# The tests of the Python package, on the wheels as users get them, in an environment of their own.
#
#   scripts/python-tests.sh [PYTEST ARGUMENT…]
#
# First what reads the code (ruff, mypy, the stubs of the native module), then the suite, then what needs faults on
# demand, with the wheel built for that. The last line is the sum.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

environment=$target/venv-test
pins=python/requirements-test.txt
passed=0
failed=0
skipped=0

# The copy says with which pins the environment was made; it is written last.
if ! cmp -s "$pins" "$environment/pins.txt"; then
    say "making the Python environment of the tests (once; a minute)"
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$pins"
    cp "$pins" "$environment/pins.txt"
fi
python=$environment/bin/python

# install WHEEL…: anew, for a wheel of the same version may have been built again.
install() {
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$@"
}

# check SENTENCE COMMAND…: one case; what it said is shown if it does not hold.
check() {
    local sentence=$1 said=$logs/python-check.log
    shift
    if "$@" >"$said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "python: not so: $sentence"
        cat "$said" >&2
    fi
}

# tests ARGUMENT…: runs pytest and adds up what its last line counts.
tests() {
    local output=$logs/pytest.log status=0 last count
    # Away from the sources: what is tested is what is installed.
    (cd "$target" && "$python" -m pytest -q --rootdir "$root/python" -c "$root/python/pyproject.toml" \
        -p no:cacheprovider "$@") >"$output" 2>&1 || status=$?
    last=$(tail -n 1 "$output")
    if [ "$status" != 0 ]; then cat "$output" >&2; fi
    count() { grep -Eo "[0-9]+ $1" <<<"$last" | grep -Eo '^[0-9]+' || echo 0; }
    local lost
    lost=$(($(count failed) + $(count error)))
    if [ "$status" != 0 ] && [ "$lost" = 0 ]; then lost=1; fi
    passed=$((passed + $(count passed)))
    failed=$((failed + lost))
    skipped=$((skipped + $(count skipped)))
}

install "$target"/packages/broca_sdk-*.whl "$target"/packages/broca_server-*.whl
BROCA_BINARY=$("$python" -c 'import broca_server; print(broca_server.binary_path())')
export BROCA_BINARY
check "ruff finds nothing" "$environment/bin/ruff" check --quiet python bench/python
check "the code has ruff's format" "$environment/bin/ruff" format --quiet --check python
check "mypy, strict, finds nothing" bash -c "cd python && '$python' -m mypy --strict broca"
# guides: the code of the Markdown files against the installed package. Functions of theirs may have no body.
guides() {
    local folder=$target/guides/python
    rm -rf "$folder"
    python3 scripts/fragments.py python "$folder"
    cp scripts/fragments/around.py "$folder"
    (cd "$folder" && "$python" -m mypy --check-untyped-defs --disable-error-code used-before-def \
        --disable-error-code empty-body --python-version 3.10 .)
}
check "the code in the guides fits the package" guides
check "the stubs of the native module are true" bash -c "cd '$target' && '$python' -m mypy.stubtest broca._broca"
tests "$root/python/tests" "$@"
install "$(bash scripts/python-package.sh --testing)"
tests "$root/python/tests" -k panic
install "$target"/packages/broca_sdk-*.whl
echo "python: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]

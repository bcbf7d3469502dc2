#!/usr/bin/env bash
# The tests of the Node package, on the package as users get it, installed into a folder of its own.
#
#   scripts/node-tests.sh [TEST FILE…]      such as tools.test.ts
#
# The tests are compiled against the types of the installed package. The last line is the sum.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

home=$target/node-tests
tarball=$(bash scripts/node-package.sh)
addon=$(bash scripts/node-package.sh --testing)
mkdir -p "$home"

# The pins are those of the package's own development; a copy of the lists says what is installed.
if ! cmp -s node/package-lock.json "$home/lock.json" || [ "$tarball" -nt "$home/lock.json" ]; then
    say "installing the package for the tests"
    rm -rf "$home/node_modules" "$home/package.json" "$home/package-lock.json" "$home/lock.json"
    node -e '
        const { devDependencies } = require("./node/package.json");
        const [, home, tarball] = process.argv;
        require("fs").writeFileSync(`${home}/package.json`, JSON.stringify({
            private: true, dependencies: { "@broca/sdk": `file:${tarball}`, ...devDependencies } }));' "$home" "$tarball"
    npm install --prefix "$home" --no-audit --no-fund --silent --prefer-offline
    cp node/package-lock.json "$home/lock.json"
fi

rm -rf "$home/test" "$home/build"
cp -r node/test node/tsconfig.json node/tsconfig.test.json node/tsconfig.guides.json "$home/"
(cd "$home" && node_modules/.bin/tsc -p tsconfig.test.json) || fail "the tests of Node do not compile"

# The code of the Markdown files against the types of the installed package.
rm -rf "$home/guides"
python3 scripts/fragments.py node "$home/guides" >/dev/null
cp scripts/fragments/around.d.ts "$home/guides/"
(cd "$home" && node_modules/.bin/tsc -p tsconfig.guides.json) ||
    fail "the code in the guides does not fit the package"

files=()
for file in "${@:-}"; do files+=("build/${file%.ts}.js"); done
[ $# -gt 0 ] || files=("$home"/build/*.test.js)

if [ -z "${BROCA_BINARY:-}" ]; then
    cargo build --quiet --locked --profile ci -p broca-cli
    BROCA_BINARY=$target/ci/broca
fi
log=$logs/node-tests.log
status=0
(cd "$home" && BROCA_BINARY=$BROCA_BINARY BROCA_TEST_ADDON=$addon \
    node --unhandled-rejections=strict --test --test-reporter=tap "${files[@]}") >"$log" 2>&1 || status=$?
[ "$status" = 0 ] || grep -E -A25 '^ *not ok|^# (Error|Warning)' "$log" >&2 || true

# count WORD: what the closing lines say of it.
count() {
    local found
    found=$(sed -n "s/^# $1 \([0-9]*\)$/\1/p" "$log" | tail -n 1)
    echo "${found:-0}"
}
passed=$(count pass)
lost=$(($(count fail) + $(count cancelled)))
if [ "$status" != 0 ] && [ "$lost" = 0 ]; then lost=1; fi
echo "$passed passed, $lost failed, $(($(count skipped) + $(count todo))) skipped"
[ "$lost" = 0 ]

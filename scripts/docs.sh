#!/usr/bin/env bash
# The documentation: the libraries' reference builds without a warning, no link of a Markdown file leads nowhere, and the
# programs of README.md and of the guide are those of examples/, which are tested.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0
# libbroca is left out: its reference is the header, and as a crate it has the name of the client.
for part in reference links programs; do
    case $part in
        reference) RUSTDOCFLAGS="-D warnings" cargo doc --quiet "${workspace[@]}" --exclude broca-capi --no-deps --lib ;;
        links) python3 scripts/links.py ;;
        programs) python3 scripts/readme.py && python3 scripts/snippets.py ;;
    esac && passed=$((passed + 1)) || failed=$((failed + 1))
done
say "the reference is in $target/doc"
echo "docs: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

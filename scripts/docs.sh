#!/usr/bin/env bash
# The documentation: the libraries' reference builds without a warning, and no link of a Markdown
# file leads nowhere.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0
for part in reference links; do
    case $part in
        reference) RUSTDOCFLAGS="-D warnings" cargo doc --quiet "${workspace[@]}" --no-deps --lib ;;
        links) python3 scripts/links.py ;;
    esac && passed=$((passed + 1)) || failed=$((failed + 1))
done
say "the reference is in $target/doc"
echo "docs: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

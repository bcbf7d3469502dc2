#!/usr/bin/env bash
# Plays vectors through the public API of every language that has a runner.
#
#   FILES="path …" KINDS="kind …" LANGUAGES="rust python node c" scripts/vectors.sh
#
# Languages play on what users install: the packages in target/packages, which `make packages` builds. Others are named by
# BROCA_VECTORS_PYTHON (an interpreter that has the package), BROCA_VECTORS_NODE (a folder with it in its node_modules) and
# BROCA_VECTORS_C (the program made of bindings/capi/tests/vectors_child.c).
#
# Prints one line for each language, `rust: N passed, N failed, N skipped`; the failing cases go to the
# error stream. Without FILES: every set of the manifest, with the kinds that must be played today; the
# number of cases must then be the manifest's.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/installed.sh
. "$(dirname "$0")/installed.sh"
cd "$root"

read -r -a files <<<"${FILES:-}"
read -r -a kinds <<<"${KINDS:-}"
count='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'

# Every runner takes `[--kind K]… FILE…`. Another language adds its name and its command here, and what has to be there
# before as NAME_ready.
# shellcheck disable=SC2329 # called by name in `play` and below
{
rust_ready() { :; }
rust_runner() {
    "$target/debug/vectors" "$@"
}

python_ready() {
    python=${BROCA_VECTORS_PYTHON:-}
    if [ -z "$python" ]; then
        need_python
        install_python "$target/vectors/python"
        python=$target/vectors/python/bin/python
    fi
    # Away from the sources: what is played is what is installed.
    (cd "$target" && "$python" -c 'import broca.testing.vectors') ||
        fail "$python has no package broca to play on: install it, or run make packages and leave BROCA_VECTORS_PYTHON out"
}
python_runner() {
    PYTHONSAFEPATH=1 "$target/debug/vectors" --through "$python -m broca.testing.vectors" "$@"
}

node_ready() {
    local folder=${BROCA_VECTORS_NODE:-}
    if [ -z "$folder" ]; then
        need_node
        folder=$target/vectors/node
        install_node "$folder"
    fi
    node_child=$folder/node_modules/@broca/sdk/dist/testing/vectors.js
    [ -e "$node_child" ] ||
        fail "$folder has no package @broca/sdk to play on: install it, or run make packages and leave BROCA_VECTORS_NODE out"
}
node_runner() {
    "$target/debug/vectors" --through "node $node_child" "$@"
}

c_ready() {
    local place=$target/vectors/c
    c_child=${BROCA_VECTORS_C:-}
    if [ -z "$c_child" ]; then
        need_c
        [ -e "$packages/capi/include/broca.h" ] || fail "$packages/capi is missing: run make packages"
        # The functions that the program needs beside the installed ones are in no released library.
        cargo build --quiet "${workspace[@]}"
        mkdir -p "$place"
        cp "$target/debug/libbroca.a" "$place/libbroca.a"
        c_child=$place/vectors_child
        # shellcheck disable=SC2046 # the system's libraries are words
        cc -std=c99 -Wall -Wextra -Werror -pedantic -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
            -I"$packages/capi/include" bindings/capi/tests/vectors_child.c "$place/libbroca.a" \
            $(tail -n 1 "$target/capi-native-libs") -o "$c_child" || fail "vectors_child.c could not be compiled"
    fi
    [ -x "$c_child" ] || fail "$c_child is no program: it is made of bindings/capi/tests/vectors_child.c"
}
c_runner() {
    "$target/debug/vectors" --through "$c_child" "$@"
}
}

# play LANGUAGE ARGUMENT…: sets passed, failed, skipped; status 1 if the runner itself broke.
play() {
    local language=$1 output last status=0
    shift
    output=$("${language}_runner" "$@") || status=$?
    last=$(tail -n 1 <<<"$output")
    if ! [[ $last =~ $count ]]; then
        say "$language: the runner ended with status $status and without a count"
        [ -z "$output" ] || say "$output"
        return 1
    fi
    sed '$d' <<<"$output" >&2
    read -r passed _ failed _ skipped _ <<<"$last"
    if [ "$status" != 0 ] && [ "$failed" = 0 ]; then
        say "$language: the runner ended with status $status though no case failed"
        return 1
    fi
}

# One run over the files named by the caller.
named() {
    local language=$1 arguments=() kind
    for kind in "${kinds[@]}"; do arguments+=(--kind "$kind"); done
    play "$language" "${arguments[@]}" "${files[@]}" || return 1
    echo "$language: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

# One run for each set of the manifest, summed up. A case that the runner must play but does not
# account for is a failure; the kinds that are not played yet are skips, whether it counts them or not.
listed() {
    local language=$1 file due other rest arguments kind total sum=(0 0 0)
    while read -r file due other rest; do
        arguments=()
        for kind in $rest; do arguments+=(--kind "$kind"); done
        play "$language" "${arguments[@]}" "$file" || return 1
        total=$((passed + failed + skipped))
        if [ "$total" = "$due" ]; then
            skipped=$((skipped + other))
        elif [ "$total" != $((due + other)) ]; then
            say "$language: $file: $total cases counted, the manifest says $due to play and $other others"
            failed=$((failed + 1))
        fi
        sum=($((sum[0] + passed)) $((sum[1] + failed)) $((sum[2] + skipped)))
    done < <(scripts/vectors-manifest.py --plan)
    echo "$language: ${sum[0]} passed, ${sum[1]} failed, ${sum[2]} skipped"
    [ "${sum[1]}" = 0 ]
}

cargo build --quiet "${workspace[@]}" --bins --examples
[ ${#files[@]} -gt 0 ] || [ ${#kinds[@]} = 0 ] || fail "KINDS goes with FILES: name the files to play"
status=0
for language in ${LANGUAGES:-rust python node c}; do
    declare -F "${language}_runner" >/dev/null || fail "there is no runner for $language"
    "${language}_ready"
    if [ ${#files[@]} -gt 0 ]; then
        named "$language" || status=1
    else
        listed "$language" || status=1
    fi
done
exit "$status"

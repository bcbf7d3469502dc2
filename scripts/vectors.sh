#!/usr/bin/env bash
# Plays vectors through the public API of every language that has a runner.
#
#   FILES="path …" KINDS="kind …" LANGUAGES="rust …" scripts/vectors.sh
#
# Prints one line for each language, `rust: N passed, N failed, N skipped`; the failing cases go to the
# error stream. Without FILES: every set of the manifest, with the kinds that must be played today; the
# number of cases must then be the manifest's.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

read -r -a files <<<"${FILES:-}"
read -r -a kinds <<<"${KINDS:-}"
count='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'

# Every runner takes `[--kind K]… FILE…`. Another language adds its name and its command here.
# shellcheck disable=SC2329 # called by name in `play`
rust_runner() {
    "$target/debug/vectors" "$@"
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
for language in ${LANGUAGES:-rust}; do
    if [ ${#files[@]} -gt 0 ]; then
        named "$language" || status=1
    else
        listed "$language" || status=1
    fi
done
exit "$status"

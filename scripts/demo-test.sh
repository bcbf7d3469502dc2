#!/usr/bin/env bash
# The demo as a test: it ends well, it is about the file that was named, it says what is wrong with a
# file that it cannot take, and it leaves nothing behind. Runs what the build of the workspace has left.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

passed=0
failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# What the demo makes goes here, so that what it leaves can be seen.
mkdir "$scratch/tmp"

# check SENTENCE COMMAND…: one case; the log is shown if it does not hold.
check() {
    local sentence=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "demo: not so: $sentence"
        cat "$scratch/log" >&2
    fi
    cat "$scratch/log" >>"$logs/demo.log"
}

demo() {
    TMPDIR=$scratch/tmp timeout "${DEMO_SECONDS:-120}" bash scripts/demo.sh --built "$@" </dev/null
}

ends_well() {
    demo "$root/CONTRIBUTING.md" | tee "$scratch/said" || return 1
    grep -q 'answer is right' "$scratch/said"
}

everybody_speaks() {
    local who
    for who in service 'driver A' 'driver B' model observer check; do
        grep -q "^$who *| " "$scratch/said" || return 1
    done
    # The model's words appear while it is being asked, not when it has answered.
    sed -n '/provider\.request/,/provider\.response/p' "$scratch/said" | grep -q '^model'
}

tells_the_file() {
    local word=quillwort-$RANDOM$RANDOM
    printf 'The password of the garden is %s.\n' "$word" >"$scratch/the garden's.txt"
    demo "$scratch/the garden's.txt" | tee "$scratch/said" || return 1
    grep -q "$word" "$scratch/said"
}

# refuses FILE WORDS: no session is begun, and the words say why.
refuses() {
    ! demo "$1" >"$scratch/said" 2>&1 || return 1
    cat "$scratch/said"
    grep -q "$2" "$scratch/said" && grep -q 'make demo FILE=path' "$scratch/said"
}

# make_keeps_names: with a bash that only tells what it was given.
make_keeps_names() {
    local name="it's \"the\" \$HOME of \$(FILE).txt"
    mkdir -p "$scratch/bin"
    printf '#!/bin/sh\nprintf "%%s|" "$@" "$FILES" "$KINDS"\n' >"$scratch/bin/bash"
    chmod +x "$scratch/bin/bash"
    local stub=(env -u MAKEFLAGS -u FILE -u FILES -u KINDS "PATH=$scratch/bin:$PATH")
    local told=("${stub[@]}" make --no-print-directory)
    [ "$("${told[@]}" demo)" = 'scripts/demo.sh|||' ] || return 1
    [ "$("${told[@]}" demo "FILE=$name")" = "scripts/demo.sh|$name|||" ] || return 1
    [ "$("${stub[@]}" "FILE=$name" make --no-print-directory demo)" = "scripts/demo.sh|$name|||" ] || return 1
    [ "$("${told[@]}" vectors "FILES=$name" 'KINDS=a b')" = "scripts/vectors.sh|$name|a b|" ] || return 1
    [ "$("${told[@]}" fuzz 'TARGETS=one two')" = 'scripts/fuzz.sh|one|two|||' ]
}

leaves_nothing() {
    ls -A "$scratch/tmp"
    [ -z "$(ls -A "$scratch/tmp")" ] || return 1
    # Its service is told about files in there, so it is known by its arguments.
    ! grep -aqs "$scratch/tmp" /proc/[0-9]*/cmdline
}

cleans_up_when_it_is_ended() {
    local demo tenths=0 status=0
    TMPDIR=$scratch/tmp bash scripts/demo.sh --built "$root/CONTRIBUTING.md" \
        </dev/null >"$scratch/said" 2>&1 &
    demo=$!
    until grep -q '^observer' "$scratch/said"; do
        tenths=$((tenths + 1))
        [ "$tenths" -lt 600 ] || break
        sleep 0.1
    done
    kill -TERM "$demo"
    wait "$demo" || status=$?
    cat "$scratch/said"
    [ "$status" = 1 ] && grep -q '^demo: interrupted' "$scratch/said" && leaves_nothing
}

: >"$logs/demo.log"
printf 'a\0b' >"$scratch/binary"
truncate -s 20M "$scratch/huge"
mkfifo "$scratch/pipe"
check "the demo ends with status 0 and the right answer" ends_well
check "everybody speaks in it, the model live" everybody_speaks
check "the demo reads the file that was named" tells_the_file
check "make hands names over as they were typed" make_keeps_names
check "a missing file is named, with the cure" refuses "$scratch/nothing.txt" 'there is no file'
check "a folder is refused" refuses "$scratch" 'is a folder'
check "a pipe is refused and not waited for" refuses "$scratch/pipe" 'is a pipe'
check "a file that is no text is refused" refuses "$scratch/binary" 'no text file'
check "a file that is too large is refused" refuses "$scratch/huge" 'larger than'
check "the demo leaves no file and no process behind" leaves_nothing
check "a demo that is ended early cleans up, too" cleans_up_when_it_is_ended
echo "demo: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# The demo as a test: it ends well, it is about the file that was named, it says what is wrong with a
# file that it cannot take, and it leaves nothing behind. Runs what the build of the workspace and `make packages` have left.
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
    [ "$(grep -c '^check .*answer is right' "$scratch/said")" = 4 ]
}

everybody_speaks() {
    local who
    for who in service Rust Python C Node model observer check; do
        grep -q "^$who *| " "$scratch/said" || return 1
    done
    # The model's words appear while it is being asked, not when it has answered.
    sed -n '/provider\.request/,/provider\.response/p' "$scratch/said" | grep -q '^model'
}

every_language_drives() {
    local who tool
    while read -r who tool; do
        grep -q "^$who *| .*bringing the tools\? .*$tool" "$scratch/said" || return 1
        grep -q "^$who *| asks: .*CONTRIBUTING.md" "$scratch/said" || return 1
        grep -q "^$who *| runs $tool {" "$scratch/said" || return 1
        grep -q "^check *| $who: the answer is right" "$scratch/said" || return 1
    done <<'END'
Rust count_words
Python longest_word
C file_size
Node most_frequent_word
END
    grep -q '^check *| [1-3] drivers joined while the turn of another was under way' "$scratch/said"
}

# Words, bytes and counts of a file for which they were counted by hand.
tells_what_is_true() {
    printf 'a b-b\t(a)\n\\n  Größe, "quillworts"\r\n--- b-b a\n' >"$scratch/known.txt"
    demo "$scratch/known.txt" | tee "$scratch/said" || return 1
    grep -q '^check *| Rust: .* 9 words' "$scratch/said" && grep -q '^check *| Python: .*, quillworts$' "$scratch/said" &&
        grep -q '^check *| C: .*, 47 bytes' "$scratch/said" && grep -q '^check *| Node: .*, a (3)$' "$scratch/said"
}

# Not a word in it, and a word longer than a line.
takes_odd_files() {
    printf ' --- \n' >"$scratch/no words.md"
    demo "$scratch/no words.md" | tee "$scratch/said" || return 1
    grep -q '^check *| Python: .*, there is none$' "$scratch/said" || return 1
    printf 'x%.0s' {1..5000} >"$scratch/one word.md"
    demo "$scratch/one word.md" | tee "$scratch/said" || return 1
    grep -q '^check *| Node: .*, x\{60\}… (1)$' "$scratch/said"
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

# names_what_is_missing PROGRAM WORDS: one that is too old for the demo, in the place of the real one.
names_what_is_missing() {
    local old=$scratch/old-$1
    mkdir -p "$old"
    printf '#!/bin/sh\nexit 1\n' >"$old/$1"
    chmod +x "$old/$1"
    ! PATH=$old:$PATH demo "$root/CONTRIBUTING.md" >"$scratch/said" 2>&1 || return 1
    cat "$scratch/said"
    grep -q "$2.*install .* and run this again" "$scratch/said" && [ "$(wc -l <"$scratch/said")" = 1 ]
}

# make_keeps_names: with a bash that only tells what it was given.
make_keeps_names() {
    local name="it's \"the\" \$HOME of \$(FILE).txt"
    mkdir -p "$scratch/bin"
    # shellcheck disable=SC2016 # expanded by the script that this makes
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
    nobody_is_left
}

# The service is told about files in the one folder, the drivers about the file that was named: so they are known.
nobody_is_left() {
    ! grep -aqs -e "$scratch/tmp" -e "$scratch/a file.md" /proc/[0-9]*/cmdline
}

# ended_by SIGNAL [TARGET]: starts a demo in a group of its own, ends it while every driver runs, and sets `status`.
ended_by() {
    local demo tenths=0
    status=0
    cp "$root/CONTRIBUTING.md" "$scratch/a file.md"
    TMPDIR=$scratch/tmp setsid bash scripts/demo.sh --built "$scratch/a file.md" </dev/null >"$scratch/said" 2>&1 &
    demo=$!
    until grep -q '^Node .*asks' "$scratch/said"; do
        tenths=$((tenths + 1))
        [ "$tenths" -lt 600 ] || break
        sleep 0.1
    done
    [ "$(grep -als "$scratch/a file.md" /proc/[0-9]*/cmdline | wc -l)" -ge 2 ] || return 1
    kill "-$1" -- "${2:-}$demo"
    wait "$demo" || status=$?
    cat "$scratch/said"
}

cleans_up_when_it_is_ended() {
    ended_by TERM || return 1
    [ "$status" = 1 ] && grep -q '^demo: interrupted' "$scratch/said" && leaves_nothing
}

# Ctrl-C goes to everybody in the foreground.
cleans_up_after_ctrl_c() {
    ended_by INT - || return 1
    [ "$status" = 1 ] && grep -q '^demo: interrupted' "$scratch/said" && ! grep -q Traceback "$scratch/said" && leaves_nothing
}

# It cannot remove its folder then, but nobody outlives it.
ends_everybody_with_it() {
    local tenths=0
    ended_by KILL || return 1
    until nobody_is_left; do
        tenths=$((tenths + 1))
        [ "$tenths" -lt 150 ] || return 1
        sleep 0.1
    done
    rm -rf "$scratch"/tmp/broca-demo-*
}

: >"$logs/demo.log"
printf 'a\0b' >"$scratch/binary"
truncate -s 20M "$scratch/huge"
mkfifo "$scratch/pipe"
check "the demo ends with status 0 and the right answer" ends_well
check "everybody speaks in it, the model live" everybody_speaks
check "a driver in each of four languages asks, runs its tool and is answered" every_language_drives
check "what it says of a file is true" tells_what_is_true
check "files without words and with a long one are no trouble" takes_odd_files
check "the demo reads the file that was named" tells_the_file
check "make hands names over as they were typed" make_keeps_names
check "a missing file is named, with the cure" refuses "$scratch/nothing.txt" 'there is no file'
check "a folder is refused" refuses "$scratch" 'is a folder'
check "a pipe is refused and not waited for" refuses "$scratch/pipe" 'is a pipe'
check "a file that is no text is refused" refuses "$scratch/binary" 'no text file'
check "a file that is too large is refused" refuses "$scratch/huge" 'larger than'
check "a Node that is too old is named, with the cure" names_what_is_missing node 'node is older than 20'
check "a Python that is too old is named, with the cure" names_what_is_missing python3 'python3 is older than 3.9'
check "the demo leaves no file and no process behind" leaves_nothing
check "a demo that is ended early cleans up, too" cleans_up_when_it_is_ended
check "and so does one that is ended with Ctrl-C" cleans_up_after_ctrl_c
check "nobody outlives a demo that is killed" ends_everybody_with_it
echo "demo: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]

#!/usr/bin/env bash
# Every test of the C interface, against an installed libbroca and a running service. Ends in a count.
#
#   scripts/capi-tests.sh
#
# BROCA_TEST_SESSIONS says how many sessions the test of many opens (2000). CAPI_BINARIES names a folder with the command
# `broca` and a libbroca with the feature `testing`, so that neither is built here.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

tests=bindings/capi/tests
work=$(mktemp -d)
log=$logs/capi-tests.log
: >"$log"
passed=0 failed=0 skipped=0
services=()

finish() {
    exec 8>&- 9>&-
    for pid in "${services[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

# check NAME COMMAND…: one test.
check() {
    local name=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "FAILED: $name"
        tail -n 40 "$work/output" >&2
    fi
    { echo "== $name"; cat "$work/output"; } >>"$log"
}

# count NAME COMMAND…: a program whose last line counts its tests.
count() {
    local name=$1 status=0 line
    shift
    "$@" >"$work/output" 2>&1 || status=$?
    { echo "== $name"; cat "$work/output"; } >>"$log"
    line=$(grep -Eo '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$work/output" | tail -n 1 || true)
    if [ -n "$line" ]; then
        read -r p _ f _ s _ <<<"$line"
        if [ "$status" != 0 ] && [ "$f" = 0 ]; then f=1; fi
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        f=1
        failed=$((failed + 1))
    fi
    say "$name: ${line:-no count}$([ "$status" = 0 ] || echo ", ended with status $status")"
    [ "$f" = 0 ] || tail -n 60 "$work/output" >&2
}

skip() {
    skipped=$((skipped + 1))
    say "skipped: $1: $2"
}

# need COMMAND PACKAGE: the command is there, or Debian's package brings it.
need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $2 (for $1)"
        [ -n "${refreshed:-}" ] || apt-get update -qq >"$logs/apt.log" 2>&1 || true
        refreshed=1
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >>"$logs/apt.log" 2>&1 || return 1
    fi
    command -v "$1" >/dev/null
}

has_libuv() { pkg-config --exists libuv; }

need gcc gcc || fail "gcc is missing"
need g++ g++ || fail "g++ is missing"
need pkg-config pkg-config || fail "pkg-config is missing"
need cmake cmake || say "cmake is missing"
need valgrind valgrind || say "valgrind is missing"
if ! has_libuv && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing libuv1-dev"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libuv1-dev >>"$logs/apt.log" 2>&1 || true
fi

if [ -n "${CAPI_BINARIES:-}" ]; then
    binaries=$CAPI_BINARIES
else
    cargo build --quiet "${workspace[@]}"
    binaries=$target/debug
fi
prefix=$(bash scripts/capi-package.sh)
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig

# What is generated is what its source says.
cargo build --quiet --locked -p broca-xtask
check "the header is up to date, and its comments say who owns what" "$target/debug/broca-xtask" header --check
check "the library exports what is listed" "$target/debug/broca-xtask" symbols --check "$prefix/lib/libbroca.so"
every_function_is_tested() {
    local name missing=0
    while read -r name; do
        grep -q "\b$name\b" "$tests"/*.c || { echo "no test calls $name"; missing=1; }
    done <bindings/capi/symbols.txt
    return $missing
}
check "every function is called by a test" every_function_is_tested

# The header under strict compilers; programs that find the library in each way.
strict=(-Wall -Wextra -Werror -pedantic -O1 -g)
read -ra flags <<<"$(pkg-config --cflags --libs broca)"
read -ra all_flags <<<"$(pkg-config --cflags --static --libs broca)"
run_path=(-Wl,-rpath,"$prefix/lib")
# What a compiler reaches: C99, C++17, and a newer C.
compilers=("gcc -std=c99" "gcc -std=c17" "g++ -x c++ -std=c++17" "g++ -x c++ -std=c++20")
if command -v clang >/dev/null; then
    compilers+=("clang -std=c99" "clang -x c++ -std=c++17")
else
    skip "the header under clang" "there is no clang"
fi
for compiler in "${compilers[@]}"; do
    read -ra command <<<"$compiler"
    check "the header compiles: $compiler" "${command[@]}" "${strict[@]}" "$tests/header.c" -x none "${flags[@]}" "${run_path[@]}" -o "$work/header"
    check "the program runs: $compiler" "$work/header"
done
static_flags=()
for flag in "${all_flags[@]}"; do
    case $flag in -lbroca) static_flags+=("$prefix/lib/libbroca.a") ;; *) static_flags+=("$flag") ;; esac
done
check "pkg-config links the static library" gcc -std=c99 "${strict[@]}" "$tests/header.c" "${static_flags[@]}" -o "$work/static"
check "the statically linked program runs" "$work/static"
needs_no_libbroca() { ! ldd "$work/static" | grep -q libbroca; }
check "the statically linked program needs no libbroca" needs_no_libbroca
shows_the_interface_only() { # which symbols a static library, or what is made of it, shows
    diff <(nm "$@" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u) <(sort "$root/bindings/capi/symbols.txt")
}
beside_another() { # another static library of Rust, before and behind
    echo '#[unsafe(no_mangle)] pub extern "C" fn other() -> usize { std::panic::catch_unwind(|| vec![1; 3].len()).unwrap_or(0) }' |
        rustc --edition 2024 -O --crate-type staticlib --crate-name other -o "$work/libother.a" - || return 1
    echo '#include <broca.h>
        size_t other(void);
        int main(void) { return broca_abi_version() == BROCA_ABI_VERSION && other() == 3 ? 0 : 1; }' >"$work/two.c"
    local before behind libraries=()
    for flag in "${static_flags[@]}"; do [ "$flag" = "$prefix/lib/libbroca.a" ] || libraries+=("$flag"); done
    before=("$prefix/lib/libbroca.a" "$work/libother.a") behind=("$work/libother.a" "$prefix/lib/libbroca.a")
    gcc "$work/two.c" "-I$prefix/include" "${before[@]}" "${libraries[@]}" -o "$work/two" && "$work/two" &&
        gcc "$work/two.c" "-I$prefix/include" "${behind[@]}" "${libraries[@]}" -o "$work/two" && "$work/two"
}
check "the static library shows the interface and nothing else" shows_the_interface_only -g --defined-only "$prefix/lib/libbroca.a"
check "the static library links beside another one of Rust" beside_another
names_its_soname() { readelf -d "$work/header" | grep -q 'NEEDED.*libbroca\.so\.'; }
check "programs ask for the library by its soname" names_its_soname
if command -v cmake >/dev/null; then
    check "CMake finds the library" cmake -S "$tests/cmake" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix"
    check "CMake links both libraries" cmake --build "$work/cmake"
    check "the shared program of CMake runs" "$work/cmake/user_shared"
    check "the static program of CMake runs" "$work/cmake/user_static"
else
    skip "CMake finds the library" "there is no cmake"
fi

# A service, and the same behind TLS.
mkfifo "$work/input" "$work/front-input"
XDG_STATE_HOME=$work HOME=$work "$binaries/broca" serve --dev --json --addr 127.0.0.1:0 <"$work/input" >"$work/served" 2>>"$log" &
services+=($!)
exec 9>"$work/input"
for _ in $(seq 300); do
    grep -q listening "$work/served" && break
    sleep 0.1
done
BROCA_URL=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$work/served" | head -n 1)
[ -n "$BROCA_URL" ] || fail "the service did not start: see $log"
BROCA_CLIENT_KEY=$(cat "$work/broca/client-key")
export BROCA_URL BROCA_CLIENT_KEY
if command -v openssl >/dev/null &&
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
        -keyout "$work/key.pem" -out "$work/certificate.pem" >>"$log" 2>&1; then
    python3 "$tests/tls_front.py" "$work/certificate.pem" "$work/key.pem" "${BROCA_URL##*:}" \
        <"$work/front-input" >"$work/front" 2>>"$log" &
    services+=($!)
    exec 8>"$work/front-input"
    for _ in $(seq 100); do
        [ -s "$work/front" ] && break
        sleep 0.1
    done
    export BROCA_TLS_URL="https://localhost:$(cat "$work/front")" BROCA_TLS_ROOTS=$work/certificate.pem
fi

# The quickstarts, as somebody else would build them.
cd "$work"
echo "words of a file" >notes.txt
quickstart() {
    local output
    output=$("$work/example") || return 1
    echo "$output"
    grep -q 'words of a file' <<<"$output" && grep -q '2 rounds' <<<"$output"
}
sed -n '/^## A first program/,/^## /p' "$root/docs/c.md" | sed -n '/^```c$/,/^```$/p' | sed "/^\`\`\`/d; s|http://127.0.0.1:8080|$BROCA_URL|" >first.c
check "the first program of docs/c.md compiles" gcc -std=c99 -Wall -Wextra -Werror first.c "${flags[@]}" "${run_path[@]}" -o first
first_program() {
    local output
    output=$(./first) || return 1
    echo "$output"
    grep -q 'half past nine' <<<"$output" && grep -q '2 rounds' <<<"$output"
}
check "the first program of docs/c.md holds its conversation" first_program
for language in c c++; do
    python3 "$root/scripts/fragments.py" "$language" "$work/guides" >>"$log"
done
for fragment in "$work"/guides/*; do
    compiler=(gcc -std=c99)
    [ "${fragment##*.}" = c ] || compiler=(g++ -std=c++17)
    check "the code of $(basename "$fragment") in the guides compiles" \
        "${compiler[@]}" -Wall -Wextra -Wno-unused -Werror -fsyntax-only "${flags[@]}" "$fragment"
done
documented_statically() { # the line of docs/c.md, with the prefix filled in
    local line
    line=$(sed -n 's/^    \(cc program.c .*libbroca.a.*\)    # static$/\1/p' "$root/docs/c.md")
    [ -n "$line" ] && cp first.c program.c && eval "${line//PREFIX/$prefix} -o program" && ./program
}
check "the static line of docs/c.md links" documented_statically
for example in blocking.c poll.c epoll.c libuv.c blocking.cpp; do
    extra=()
    case $example in
    *.cpp) compiler=(g++ -std=c++17) ;;
    *) compiler=(gcc -std=c99 -D_POSIX_C_SOURCE=200809L) ;;
    esac
    if [ "$example" = libuv.c ]; then
        has_libuv || { skip "the quickstart $example" "there is no libuv"; continue; }
        read -ra extra <<<"$(pkg-config --cflags --libs libuv)"
    fi
    check "the quickstart $example compiles" "${compiler[@]}" -Wall -Wextra -Werror "$root/examples/c/$example" "${flags[@]}" "${extra[@]}" "${run_path[@]}" -o example
    check "the quickstart $example holds its conversation" quickstart
done
resumes_after_a_kill() { # killed while its tool runs, and started again
    mkfifo later.txt || return 1
    ./example left.json "What does read_file say about later.txt?" &
    local killed=$! output
    exec 7<>later.txt # its reader waits
    for _ in $(seq 100); do
        [ -s left.json ] && break
        sleep 0.1
    done
    kill -9 "$killed"
    wait "$killed"
    exec 7>&-
    rm later.txt
    cp notes.txt later.txt
    output=$(./example left.json "another message") || return 1
    echo "$output"
    grep -q 'once more' <<<"$output" && grep -q 'words of a file' <<<"$output" && grep -q '2 rounds' <<<"$output" && [ ! -e left.json ]
}
check "the quickstart resume.c compiles" gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror "$root/examples/c/resume.c" "${flags[@]}" "${run_path[@]}" -o example
check "the quickstart resume.c goes on after it was killed" resumes_after_a_kill
cd "$root"

# The suites: as released; with faults on demand under the sanitizers of C; both under Valgrind.
build() { # build OUTPUT SOURCE FLAGS…
    local output=$1 source=$2
    shift 2
    gcc -std=gnu99 "${strict[@]:0:3}" -O1 -g "$tests/$source" "$@" -lpthread -o "$work/$output"
}
check "the suites compile" build usage usage.c "${flags[@]}" "${run_path[@]}"
check "the suites compile" build conversation conversation.c "${flags[@]}" "${run_path[@]}"
count "usage" timeout 120 "$work/usage"
check "the suites compile" build attach attach.c "${flags[@]}" "${run_path[@]}"
check "the suites compile" build approve approve.c "${flags[@]}" "${run_path[@]}"
check "the suites compile" g++ -std=c++17 "${strict[@]:0:3}" -O1 -g "$tests/owners.cpp" "${flags[@]}" "${run_path[@]}" -o "$work/owners"
count "conversation" env BROCA_TEST_MEMORY=1 timeout 600 "$work/conversation"
count "attach" timeout 120 "$work/attach"
count "approve" timeout 120 "$work/approve"
count "owners" timeout 120 "$work/owners"

mkdir -p "$work/testing"
cp "$binaries/libbroca.so" "$work/testing/libbroca.so.0.1"
ln -sf libbroca.so.0.1 "$work/testing/libbroca.so"
testing=(-DBROCA_TESTING "-I$prefix/include" "-L$work/testing" -lbroca -Wl,-rpath,"$work/testing" -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
check "the suites compile with sanitizers" build usage-asan usage.c "${testing[@]}"
check "the suites compile with sanitizers" build conversation-asan conversation.c "${testing[@]}"
count "usage, sanitized" timeout 120 "$work/usage-asan"
count "conversation, sanitized" env RUST_BACKTRACE=0 BROCA_TEST_SESSIONS=300 timeout 600 "$work/conversation-asan"
check "the suites compile with sanitizers" build attach-asan attach.c "${testing[@]}"
check "the suites compile with sanitizers" build approve-asan approve.c "${testing[@]}"
check "the suites compile with sanitizers" g++ -std=c++17 "${strict[@]:0:3}" -O1 -g "$tests/owners.cpp" "${testing[@]}" -o "$work/owners-asan"
count "attach, sanitized" timeout 120 "$work/attach-asan"
count "approve, sanitized" timeout 120 "$work/approve-asan"
count "owners, sanitized" timeout 120 "$work/owners-asan"
check "the sequences compile with sanitizers" build sequences-asan sequences.c "${testing[@]}"
for seed in 1 2 "$RANDOM"; do
    count "sequences, sanitized, seed $seed" timeout 300 "$work/sequences-asan" "$seed"
done

if command -v valgrind >/dev/null; then
    grind=(valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --child-silent-after-fork=yes)
    plain=(-DBROCA_TESTING "-I$prefix/include" "-L$work/testing" -lbroca -Wl,-rpath,"$work/testing")
    check "the suites compile for Valgrind" build conversation-plain conversation.c "${plain[@]}"
    count "usage, Valgrind" timeout 300 "${grind[@]}" "$work/usage"
    count "attach, Valgrind" timeout 300 "${grind[@]}" "$work/attach"
    count "approve, Valgrind" timeout 300 "${grind[@]}" "$work/approve"
    # Not TLS: Valgrind does not follow the assembly of its ciphers, and takes what they wrote for unwritten.
    less=(env -u BROCA_TLS_URL RUST_BACKTRACE=0 BROCA_TEST_SESSIONS=20 timeout 900)
    count "conversation, Valgrind" "${less[@]}" "${grind[@]}" "$work/conversation-plain"
    count "conversation as released, Valgrind" "${less[@]}" "${grind[@]}" --suppressions="$tests/valgrind.supp" "$work/conversation"
else
    skip "the suites under Valgrind" "there is no valgrind"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]

# shellcheck shell=bash disable=SC2154
# Sourced after tools.sh: the packages of the languages as users install them, for programs that are run from there.
#
# Each function installs what target/packages holds into a folder and does nothing when that very package is there.

packages=$target/packages

# package PATTERN: the one file of this pattern in target/packages.
package() {
    # shellcheck disable=SC2206 # the pattern is to be expanded
    local found=("$packages"/$1)
    [ ${#found[@]} = 1 ] && [ -e "${found[0]}" ] || fail "$packages/$1 is missing or not alone: run make packages"
    printf '%s\n' "${found[0]}"
}

# need_python: Python 3.9 with what makes environments.
need_python() {
    local cure='install Python 3.9 or newer with venv (Debian: apt-get install python3 python3-venv) and run this again'
    command -v python3 >/dev/null || fail "python3 is missing: $cure"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "python3 is older than 3.9: $cure"
    python3 -c 'import ensurepip, venv' 2>/dev/null || fail "python3 cannot make environments: $cure"
}

# need_node: Node 20 with npm.
need_node() {
    local cure='install Node 20 or newer with npm (https://nodejs.org, Debian: apt-get install nodejs npm) and run this again'
    command -v node >/dev/null || fail "node is missing: $cure"
    node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || fail "node is older than 20: $cure"
    command -v npm >/dev/null || fail "npm is missing: $cure"
}

# need_c: a C compiler.
need_c() { command -v cc >/dev/null || fail "cc is missing: install a C compiler (Debian: apt-get install gcc) and run this again"; }

# installed FOLDER PACKAGE: whether the folder holds this very package.
installed() { [ "$(cat "$1/.package" 2>/dev/null)" = "$(sha256sum <"$2")" ]; }

# install_python FOLDER: an environment with the wheel.
install_python() {
    local folder=$1 wheel log=$logs/install-python.log
    wheel=$(package 'broca_sdk-*.whl')
    installed "$folder" "$wheel" && return
    say "installing $(basename "$wheel") into $folder"
    rm -f "$folder/.package"
    [ -x "$folder/bin/python" ] || python3 -m venv "$folder" >"$log" 2>&1 || fail "no environment in $folder: see $log"
    # The dependencies, then the wheel itself, which may have the version of the one that is there.
    local pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check)
    { "${pip[@]}" "$wheel" && "${pip[@]}" --force-reinstall --no-deps "$wheel"; } >"$log" 2>&1 ||
        fail "$wheel could not be installed: see $log"
    sha256sum <"$wheel" >"$folder/.package"
}

# install_node FOLDER: a folder with the package in its node_modules.
install_node() {
    local folder=$1 tarball log=$logs/install-node.log
    tarball=$(package 'broca-sdk-*.tgz')
    installed "$folder" "$tarball" && return
    say "installing $(basename "$tarball") into $folder"
    rm -rf "$folder/node_modules" "$folder/package.json" "$folder/package-lock.json" "$folder/.package"
    mkdir -p "$folder"
    printf '{ "private": true }\n' >"$folder/package.json"
    (cd "$folder" && npm install --no-audit --no-fund --silent "$tarball") >"$log" 2>&1 ||
        fail "$tarball could not be installed: see $log"
    sha256sum <"$tarball" >"$folder/.package"
}

# compile_c SOURCE PROGRAM: against the installed prefix, unless it is newer than both.
compile_c() {
    local source=$1 program=$2 prefix=$packages/capi
    [ -e "$prefix/include/broca.h" ] || fail "$prefix is missing: run make packages"
    if [ -x "$program" ] && [ -z "$(find "$source" "$root/examples/c/argument.h" "$root/examples/guide/guide.h" "$prefix" -newer "$program" -print -quit)" ]; then
        return
    fi
    mkdir -p "$(dirname "$program")"
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror -O1 -I"$prefix/include" "$source" -L"$prefix/lib" -Wl,-rpath,"$prefix/lib" \
        -lbroca -o "$program" || fail "$source could not be compiled"
}

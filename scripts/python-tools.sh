# shellcheck shell=bash
# Sourced after tools.sh: build tools that come from PyPI, in one environment of the target folder.

# python_tool PROGRAM PACKAGE VERSION: installs the package into target/venv-tools unless this very version is there,
# and prints the path of its program.
python_tool() {
    local program=$1 package=$2 version=$3 place=$target/venv-tools
    local own=$place/bin/$program mark=$place/$package.version
    if [ ! -x "$own" ] || [ "$(cat "$mark" 2>/dev/null)" != "$version" ]; then
        say "installing $package $version from PyPI into $place (once)"
        # One at a time: two scripts may want a tool at the same moment.
        (
            flock 9
            [ -x "$place/bin/python" ] || python3 -m venv "$place"
            "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$package==$version"
            printf '%s\n' "$version" >"$mark"
        ) 9>"$target/venv-tools.lock" >"$logs/install-$package.log" 2>&1 || {
            tail -n 20 "$logs/install-$package.log" >&2
            fail "$package could not be installed: see $logs/install-$package.log (Debian: apt-get install python3-venv)"
        }
    fi
    printf '%s\n' "$own"
}

maturin() { python_tool maturin maturin 1.16.0; }

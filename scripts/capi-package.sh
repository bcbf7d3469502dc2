#!/usr/bin/env bash
# Builds libbroca as it is released and installs it: headers, shared and static library, pkg-config and CMake files.
#
#   scripts/capi-package.sh [PREFIX]     default: target/packages/capi
#
# Prints the prefix and the sizes. Does next to nothing when nothing has changed.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
cd "$root"

prefix=$(realpath -m "${1:-$target/packages/capi}")
built=$target/release

cargo build --quiet --locked --profile release -p broca-capi

version=$(cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
print(next(p["version"] for p in packages if p["name"] == "broca-capi"))')
IFS=. read -r major minor _ <<<"$version"
abi=$major
[ "$major" != 0 ] || abi=0.$minor

case $(uname -s) in
Darwin)
    made=libbroca.dylib shared=libbroca.$version.dylib soname=libbroca.$abi.dylib strip=(strip -x) ;;
*)
    made=libbroca.so shared=libbroca.so.$version soname=libbroca.so.$abi strip=(strip --strip-unneeded) ;;
esac

# The system's libraries that the static one needs, as rustc tells them; they change with the toolchain alone.
natives_file=$target/capi-native-libs
rustc_version=$(rustc --version)
if [ ! -f "$natives_file" ] || [ "$(head -n 1 "$natives_file")" != "$rustc_version" ]; then
    probe=$(mktemp -d)
    natives=$(echo | rustc --crate-type staticlib --print native-static-libs -o "$probe/probe.a" - 2>&1 |
        sed -n 's/^note: native-static-libs: //p')
    rm -rf "$probe"
    printf '%s\n%s\n' "$rustc_version" "$natives" >"$natives_file"
fi
natives=$(tail -n 1 "$natives_file")

# only_the_interface ARCHIVE: makes one object of it whose other symbols are its own. A static library of Rust brings Rust's
# standard library with it: two of them in one program would collide, and a shared object would export all of it.
only_the_interface() {
    [ "$(uname -s)" = Linux ] || return 0
    local work
    work=$(mktemp -d)
    ld -r --force-group-allocation --whole-archive "$1" -o "$work/libbroca.o"
    # The compiler's notes to itself do not survive being put together.
    objcopy --keep-global-symbols=bindings/capi/symbols.txt --remove-section=.llvmbc --remove-section=.llvmcmd \
        --remove-section=.llvm_addrsig "$work/libbroca.o"
    ar crs "$work/libbroca.a" "$work/libbroca.o"
    mv "$work/libbroca.a" "$1"
    rm -rf "$work"
}

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/broca"
install -m 644 include/broca.h include/broca.hpp "$prefix/include/"
if [ "$built/$made" -nt "$prefix/lib/$shared" ] || [ "$built/libbroca.a" -nt "$prefix/lib/libbroca.a" ]; then
    install -m 755 "$built/$made" "$prefix/lib/$shared"
    install -m 644 "$built/libbroca.a" "$prefix/lib/libbroca.a"
    "${strip[@]}" "$prefix/lib/$shared"
    only_the_interface "$prefix/lib/libbroca.a"
    strip -S "$prefix/lib/libbroca.a"
fi
ln -sf "$shared" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/$made"

for template in bindings/capi/package/*.in; do
    name=$(basename "$template" .in)
    case $name in
    *.pc) place=$prefix/lib/pkgconfig/$name ;;
    *) place=$prefix/lib/cmake/broca/$name ;;
    esac
    sed -e "s|@VERSION@|$version|g; s|@ABI@|$abi|g; s|@SHARED@|$shared|g; s|@SONAME@|$soname|g" \
        -e "s|@NATIVE_LIBS@|$natives|g" "$template" >"$place"
done

size=$(wc -c <"$prefix/lib/$shared")
say "libbroca $version in $prefix: $shared $size bytes (budget $size_budget), libbroca.a $(wc -c <"$prefix/lib/libbroca.a") bytes"
[ "$size" -le "$size_budget" ] || fail "$shared is over its budget of $size_budget bytes"
printf '%s\n' "$prefix"

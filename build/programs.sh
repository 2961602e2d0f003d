#!/usr/bin/env bash
# Builds the four programs as they are released: for amd64 and arm64, linked against glibc 2.31, the oldest C library of
# the systems that edge nodes have (Debian 11, Ubuntu 20.04, JetPack 5).
#
#   ./build/programs.sh [ARCH...]     into target/release-programs/ARCH (default: amd64 arm64)
#
# Cross-compiles with zig, which carries the symbols of each version of glibc, as cargo-zigbuild calls it. Both come from
# PyPI (build/zig.txt). arm64 needs Rust's library for aarch64-unknown-linux-gnu, which rustup installs.
#
# The programs contain no path of this machine.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
# path_maps: folders of this machine whose paths compilers write into programs, such as into the message of a panic, and
# what stands for each: FROM=TO, one per line. A later line wins. The sources of the dependencies have to be there.
path_maps() {
    local cargo=${CARGO_HOME:-$HOME/.cargo} registry
    printf '%s\n' "$ROOT=/neptune" "$target=/neptune/target" "$(rustc --print sysroot)=/rust" "$cargo=/cargo"
    # The name of this folder contains the host of the registry or of its mirror.
    for registry in "$cargo"/registry/src/*/; do printf '%s\n' "${registry%/}=/cargo/registry"; done
}

# no_paths PROGRAM: fails if a program contains a path of path_maps.
no_paths() {
    local map
    for map in "${maps[@]}"; do
        ! LC_ALL=C grep --quiet --text --fixed-strings "${map%=*}/" "$1" ||
            fail "$1 contains the path ${map%=*} of this machine: strings '$1' | grep -F '${map%=*}'"
    done
}

architectures=("$@")
[ $# != 0 ] || architectures=(amd64 arm64)

need_cargo
need python3 python3 "to install zig"
need readelf binutils "to read which version of glibc the programs need"
target=$(target_dir)
# So that the folders of their sources exist.
cargo fetch --quiet --locked
mapfile -t maps < <(path_maps)
# Rust's flags are separated by a character that no path has. C and C++ are in dependencies only.
CARGO_ENCODED_RUSTFLAGS=$(printf '\x1f--remap-path-prefix=%s' "${maps[@]}")
CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS#?}
CFLAGS="${CFLAGS:-}$(printf ' -ffile-prefix-map=%s' "${maps[@]}")"
CXXFLAGS="${CXXFLAGS:-}$(printf ' -ffile-prefix-map=%s' "${maps[@]}")"
export CARGO_ENCODED_RUSTFLAGS CFLAGS CXXFLAGS
python_environment "$target/zig" build/zig.txt
export PATH=$target/zig/bin:$PATH

for arch in "${architectures[@]}"; do
    triple=$(rust_target "$arch")
    # rustup knows only the toolchains that it installed.
    [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ] || rustup target add "$triple" >/dev/null ||
        fail "Rust's library for $triple is missing: rustup target add $triple"
    step "programs for $arch, glibc $OLDEST_GLIBC"
    cargo zigbuild --quiet --release --locked --target "$triple.$OLDEST_GLIBC" "${PROGRAMS[@]/#/--package=}"
    for program in "${PROGRAMS[@]}"; do
        install -D -t "$target/release-programs/$arch" "$target/$triple/release/$program"
        newest=$(readelf --version-info "$target/$triple/release/$program" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
        printf '%s\nGLIBC_%s\n' "$newest" "$OLDEST_GLIBC" | sort --check=quiet -V ||
            fail "$program for $arch needs $newest, newer than $OLDEST_GLIBC: readelf --dyn-syms shows which symbol"
        no_paths "$target/release-programs/$arch/$program"
        printf '  %-19s %-6s %6s KiB  %s\n' "$program" "$arch" \
            $(($(stat -c %s "$target/$triple/release/$program") / 1024)) "$newest"
    done
done

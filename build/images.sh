#!/usr/bin/env bash
# Builds the two images without access to a registry, from programs that are compiled on this machine.
#
#   ./build/images.sh                     neptune-cloud:dev and neptune-edge:dev from target/debug
#   PROFILE=release ./build/images.sh     from target/release
#   TAG=0.2.0 ./build/images.sh           another tag
#   ARCH=arm64 ./build/images.sh          from target/release-programs/arm64 (build/programs.sh), for that architecture
#
# The base consists of a few packages of this machine's own Debian, because the programs are linked with its C library
# (apt-get install mmdebstrap; as root). Use build/Dockerfile for images that are published.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    '') ;;
    *) usage "$0"; exit 0 ;;
esac
tag=${TAG:-dev}
profile=${PROFILE:-debug}

need_cargo
need_docker
need mmdebstrap mmdebstrap "to build the base of the images"
need python3 python3 "to list the licences of the dependencies"

own_arch=$(dpkg --print-architecture)
arch=${ARCH:-$own_arch}
if [ -n "${ARCH:-}" ]; then
    programs=$(target_dir)/release-programs/$arch
    [ -x "$programs/neptune-cloud" ] || fail "$programs has no programs: run build/programs.sh $arch"
else
    programs=$(target_dir)/$profile
    step "building the programs ($profile)"
    flags=(); [ "$profile" = debug ] || flags=(--profile "$profile")
    cargo build --quiet "${PROGRAMS[@]/#/--package=}" "${flags[@]}"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

debian_sources >"$scratch/sources.list"
suite=$(debian_suite "$scratch/sources.list")
mapfile -t proxy < <(debian_proxy)

# base NAME PACKAGES: unpacks packages without configuring them, and creates the few files that are missing then.
base() {
    local name=$1 packages=$2
    step "base of $name from $suite"
    local root=$scratch/$name
    mmdebstrap --quiet --variant=extract --architectures="$arch" --include="$packages" "${proxy[@]}" --aptopt='Acquire::Languages "none"' \
        "$suite" "$root" "$scratch/sources.list" 2>"$scratch/error" || { cat "$scratch/error" >&2; fail "mmdebstrap failed: see above"; }
    # The packages' own scripts did not run, which would have created these files.
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    rm -rf "$root"/var/{lib/apt,lib/dpkg,cache,log} "$root"/usr/share/{doc,man,info,locale,lintian} \
        "$root"/usr/lib/*/gconv "$root"/usr/bin/{perl*,openssl}
}

# image NAME USER PROGRAM...: the programs and their licences on top of the base. The entry point is the program NAME.
image() {
    local name=$1 user=$2 old program doc
    shift 2
    for program in "$@"; do
        install -D -m 0755 "$programs/$program" "$scratch/$name/usr/local/bin/$program"
        [ -n "${ARCH:-}" ] || strip "$scratch/$name/usr/local/bin/$program"
        doc=$scratch/$name/usr/share/doc/$program
        install -D -m 0644 -t "$doc" LICENSE NOTICE
        python3 hack/dependencies.py licenses --target "$(rust_target "$arch")" "$program" >"$doc/THIRD-PARTY-LICENSES.txt"
    done
    old=$(docker image inspect --format '{{.Id}}' "$name:$tag" 2>/dev/null || true)
    tar --create --file=- --directory="$scratch/$name" . |
        docker import --platform "linux/$arch" --change "USER $user" --change "ENTRYPOINT [\"/usr/local/bin/$name\"]" \
            --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' --change 'LABEL org.opencontainers.image.licenses=Apache-2.0' \
            --change "LABEL org.opencontainers.image.version=$(workspace_version)" - "$name:$tag" >/dev/null
    [ "$arch" = "$own_arch" ] || return 0
    for program in "$@"; do
        docker run --rm --network none --entrypoint "$program" "$name:$tag" --version >/dev/null ||
            fail "$name:$tag was built, but $program does not run in it"
    done
    image_replaced "$name:$tag" "$old"
}

libraries=libc6,libgcc-s1,ca-certificates,base-files
base neptune-cloud "$libraries"
# The controller starts aggregators as Deployments of this image.
image neptune-cloud 65532:65532 neptune-cloud neptune-aggregator
# The DaemonSet uses a shell to read the node's settings.
base neptune-edge "$libraries,dash"
# Agents run the gateway as containers of this image.
image neptune-edge 0:0 neptune-edge neptune-gateway

#!/usr/bin/env bash
# Builds the two images from programs built here, where no registry can be reached.
#
#   ./build/images.sh                 neptune-cloud:dev and neptune-edge:dev from target/debug
#   PROFILE=release ./build/images.sh     from target/release
#   TAG=0.1.0 ./build/images.sh       another tag
#
# The base is a few packages of this machine's own Debian, because the programs are linked with its C library
# (apt-get install mmdebstrap; as root). Published images are made with build/Dockerfile.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    '') ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
tag=${TAG:-dev}
profile=${PROFILE:-debug}

need_cargo
need_docker
need mmdebstrap mmdebstrap "to make the images' base"

target_dir=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
say "building the programs ($profile)"
flags=(); [ "$profile" = debug ] || flags=(--profile "$profile")
cargo build --quiet --package neptune-cloud --package neptune-edge "${flags[@]}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The machine's own sources of its distribution, as one-line entries.
# shellcheck disable=SC2016  # apt replaces $(...), not the shell
apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' \
    "Origin: $(. /etc/os-release && case $ID in ubuntu) echo Ubuntu ;; *) echo Debian ;; esac)" | sort -u >"$scratch/sources.list"
[ -s "$scratch/sources.list" ] || fail "no Debian sources are known here: run sudo apt-get update"
suite=$(awk '{print length($3), $3}' "$scratch/sources.list" | sort -n | awk 'NR == 1 {print $2}')
proxy=()
while read -r key value; do proxy+=("--aptopt=$key $value"); done < <(apt-config dump | grep -E '^Acquire::https?::Proxy ' || true)

# base NAME PACKAGES: unpacks packages without configuring them, and makes by hand the little that is missed.
base() {
    local name=$1 packages=$2
    say "base of $name from $suite"
    local root=$scratch/$name
    mmdebstrap --quiet --variant=extract --include="$packages" "${proxy[@]}" --aptopt='Acquire::Languages "none"' \
        "$suite" "$root" "$scratch/sources.list" 2>"$scratch/why" || { cat "$scratch/why" >&2; fail "mmdebstrap failed"; }
    # No package's own script was run, so what they would have made is made here.
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    rm -rf "$root"/var/{lib/apt,lib/dpkg,cache,log} "$root"/usr/share/{doc,man,info,locale,lintian} \
        "$root"/usr/lib/*/gconv "$root"/usr/bin/{perl*,openssl}
}

# image NAME USER: the program on top of its base.
image() {
    local name=$1 user=$2 old
    install -D -m 0755 "$target_dir/$profile/$name" "$scratch/$name/usr/local/bin/$name"
    strip "$scratch/$name/usr/local/bin/$name"
    old=$(docker image inspect --format '{{.Id}}' "$name:$tag" 2>/dev/null || true)
    tar --create --file=- --directory="$scratch/$name" . |
        docker import --change "USER $user" --change "ENTRYPOINT [\"/usr/local/bin/$name\"]" \
            --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$name:$tag" >/dev/null
    # The image that had this name goes, unless a container still uses it.
    [ -z "$old" ] || docker image rm "$old" >/dev/null 2>&1 || true
    docker run --rm --network none "$name:$tag" --version >/dev/null || fail "$name:$tag was built but does not run"
    say "$name:$tag: $(docker image inspect --format '{{.Size}}' "$name:$tag" | awk '{printf "%.0f MB", $1 / 1e6}')"
}

libraries=libc6,libgcc-s1,ca-certificates,base-files
base neptune-cloud "$libraries"
image neptune-cloud 65532:65532
# The DaemonSet reads the node's settings with a shell.
base neptune-edge "$libraries,dash"
image neptune-edge 0:0

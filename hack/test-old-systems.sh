#!/usr/bin/env bash
# Starts the released programs on Debian 11, for amd64 and arm64: prints the versions of all four, runs the doctor and
# downloads a file. Programs of another architecture than this machine's run under qemu-user.
#
#   ./hack/test-old-systems.sh [ARCH...]      default: amd64 arm64, from target/release-programs (build/programs.sh)
#
# Needs root and Debian. Unpacks a Debian 11 per architecture into a temporary folder.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
architectures=("$@")
[ $# != 0 ] || architectures=(amd64 arm64)

[ "$(id -u)" = 0 ] || fail "changing the root directory needs root"
need mmdebstrap mmdebstrap "to unpack a Debian 11"
need python3 python3 "to serve the file that is downloaded"
programs=$(target_dir)/release-programs
scratch=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; umount "$scratch"/*/proc 2>/dev/null || true; rm -rf "$scratch"' EXIT
mapfile -t proxy < <(debian_proxy)
debian_sources >"$scratch/sources"
mirror=$(awk -v suite="$(debian_suite "$scratch/sources")" '$3 == suite {print $2; exit}' "$scratch/sources")

head -c 1000000 /dev/urandom >"$scratch/model.bin"
digest=$(sha256sum "$scratch/model.bin" | cut -d' ' -f1)
port=$(free_port)
python3 -m http.server "$port" --bind 127.0.0.1 --directory "$scratch" >/dev/null 2>&1 &
server=$!

for arch in "${architectures[@]}"; do
    root=$scratch/$arch
    step "Debian 11 for $arch"
    # Of the first release of Debian 11: the archive keeps its packages, and later ones have newer parts only.
    mmdebstrap --quiet --variant=extract --architectures="$arch" --include=libc6,libgcc-s1,ca-certificates "${proxy[@]}" \
        --aptopt='Acquire::Languages "none"' bullseye "$root" "deb $mirror bullseye main" 2>"$scratch/error" ||
        { cat "$scratch/error" >&2; fail "mmdebstrap failed: see above"; }
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    # The store of models opens its files by /proc/self/fd.
    mkdir -p "$root/proc"
    mount -t proc proc "$root/proc"
    emulator=()
    if [ "$arch" != "$(dpkg --print-architecture)" ]; then
        machine=$(rust_target "$arch" | cut -d- -f1)
        need "qemu-$machine-static" qemu-user-static "to run programs for $arch"
        install -t "$root/usr/bin" "$(command -v "qemu-$machine-static")"
        emulator=("/usr/bin/qemu-$machine-static")
    fi
    # on_old PROGRAM ARGUMENT...: runs a released program on that system.
    on_old() { local program=$1; shift; chroot "$root" "${emulator[@]}" "/usr/bin/$program" "$@"; }
    for program in "${PROGRAMS[@]}"; do
        install -t "$root/usr/bin" "$programs/$arch/$program"
        on_old "$program" --version || fail "$program for $arch does not start on Debian 11"
    done
    # It finds no engine and no broker there: the report is complete all the same.
    on_old neptune-edge doctor --json --node-name old --mqtt-url mqtt://127.0.0.1:1 >"$scratch/doctor.json" || true
    python3 -c 'import json, sys; print("  doctor:", len(json.load(open(sys.argv[1]))["checks"]), "checks")' "$scratch/doctor.json" ||
        fail "neptune-edge doctor --json for $arch printed no report"
    on_old neptune-edge fetch --url "http://127.0.0.1:$port/model.bin" --sha256 "$digest" --output /model.bin \
        --allow-address 127.0.0.1 ||
        fail "neptune-edge fetch for $arch failed on Debian 11"
    cmp "$scratch/model.bin" "$root/model.bin"
    echo "  fetch: 1000000 bytes, digest verified"
done
step "the released programs run on Debian 11"

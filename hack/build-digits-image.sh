#!/usr/bin/env bash
# Builds the image of examples/digits: one static program FROM scratch, no registry needed.
#
#   ./hack/build-digits-image.sh [TAG]        TAG is neptune/digits:dev unless given
#
# Does nothing when the image already holds the program as it is now.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/digits:dev}
case $tag in
    -*) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

need_cargo
need_docker

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
binary=$target_dir/$host/debug/digits

# Not optimised: it builds in half the time, and a digit takes a millisecond. What only debuggers need stays out.
say "building digits for $host (static)"
flags_variable=CARGO_TARGET_$(printf '%s' "$host" | tr 'a-z.-' 'A-Z__')_RUSTFLAGS
env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_TARGET \
    "$flags_variable=-C target-feature=+crt-static -C relocation-model=static" \
    CARGO_PROFILE_DEV_STRIP=true CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_PANIC=abort \
    cargo build --package digits --target "$host"

digest=$(sha256sum "$binary" | cut -d' ' -f1)
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.binary"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$digest" ]; then
    say "$tag is up to date"
    exit 0
fi

say "importing $tag"
tar --create --file=- --directory="$(dirname "$binary")" --owner=0 --group=0 digits |
    docker import --change 'ENTRYPOINT ["/digits"]' --change "LABEL neptune.binary=$digest" - "$tag" >/dev/null
# The image that had this name goes, unless a container still uses it.
[ -z "$old" ] || docker image rm "${old%% *}" >/dev/null 2>&1 || true
say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%.1f MB", $1 / 1e6}')"

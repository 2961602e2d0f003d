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
static_image digits "$tag" digits

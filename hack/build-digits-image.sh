#!/usr/bin/env bash
# Builds the image of examples/digits: one static program FROM scratch, without a registry.
#
#   ./hack/build-digits-image.sh [TAG]        TAG: default neptune/digits:dev
#
# Does nothing if the image already contains the current program.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/digits:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac

need_cargo
need_docker
static_image digits "$tag" digits

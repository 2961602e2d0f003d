#!/usr/bin/env bash
# Builds the image of examples/three-resources: two static programs FROM scratch, /model-server (the entry point) and
# /digits-client, without a registry.
#
#   ./hack/build-model-server-image.sh [TAG]        TAG: default neptune/model-server:dev
#
# Does nothing if the image already contains the current programs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/model-server:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac

need_cargo
need_docker
static_image three-resources "$tag" model-server digits-client

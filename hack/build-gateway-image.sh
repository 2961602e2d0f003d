#!/usr/bin/env bash
# Builds an image of the gateway for demo and tests: the static program /neptune-gateway FROM scratch, without a registry.
# It contains no certificate authorities. build/images.sh builds the agent's image, which contains the gateway too.
#
#   ./hack/build-gateway-image.sh [TAG]        TAG: default neptune/gateway:dev
#
# Does nothing if the image already contains the current program.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/gateway:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac

need_cargo
need_docker
static_image neptune-gateway "$tag" neptune-gateway

#!/usr/bin/env bash
# Builds the image of examples/three-resources: two static programs FROM scratch, /model-server (the entry point) and
# /digits-app. No registry needed.
#
#   ./hack/build-model-server-image.sh [TAG]        TAG is neptune/model-server:dev unless given
#
# Does nothing when the image already holds the programs as they are now.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/model-server:dev}
case $tag in
    -*) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

need_cargo
need_docker
static_image three-resources "$tag" model-server digits-app

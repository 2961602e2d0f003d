#!/usr/bin/env bash
# Builds an image of the aggregator for tests in which a node runs it: the static program /neptune-aggregator FROM
# scratch, without a registry, with the certificate authorities of this machine. In production the image of the
# controller contains the aggregator.
#
#   ./hack/build-aggregator-image.sh [TAG]     TAG: default neptune/aggregator:dev
#
# Does nothing if the image already contains the current program.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/aggregator:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac

need_cargo
need_docker
need /etc/ssl/certs/ca-certificates.crt ca-certificates "authorities of the image"
static_image neptune-aggregator "$tag" neptune-aggregator

# Without any authority the aggregator has no HTTPS client, and does not start.
if [ "$(docker inspect --format '{{index .Config.Labels "io.neptune.authorities"}}' "$tag")" != true ]; then
    files=$(mktemp -d)
    mkdir -p "$files/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$files/etc/ssl/certs/"
    container=$(docker create "$tag")
    docker cp --quiet "$files/etc" "$container:/"
    docker commit --change 'LABEL io.neptune.authorities=true' "$container" "$tag" >/dev/null
    docker rm "$container" >/dev/null
    rm -r "$files"
fi

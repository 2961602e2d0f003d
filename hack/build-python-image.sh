#!/usr/bin/env bash
# Builds the image of examples/helmet-detection: Python 3 with paho-mqtt and nothing else; or with --numpy that of
# examples/federated: Python 3 with NumPy.
#
#   ./hack/build-python-image.sh [--numpy] [TAG]        TAG: default neptune/python:dev, with --numpy neptune/numpy:dev
#
# Built from python:slim if a registry and PyPI are reachable, otherwise from this machine's own Debian sources
# (apt-get install mmdebstrap; as root or any user). Does nothing if the image was already built by this script.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

name=python pip=paho-mqtt==2.1.0 debian=python3-paho-mqtt check='import json, paho.mqtt.client, urllib.request'
if [ "${1:-}" = --numpy ]; then
    name=numpy pip=numpy==2.3.5 debian=python3-numpy check='import json, numpy; numpy.savez("/tmp/a.npz", a=numpy.ones(2))'
    shift
fi
tag=${1:-neptune/$name:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac
base=python:3.13-slim

need_docker

recipe=$(sha256sum "$0" | cut -d' ' -f1)-$name
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.recipe"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$recipe" ]; then
    step "$tag is up to date"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

from_registry() {
    step "pulling $base"
    timeout 60 docker pull --quiet "$base" >/dev/null 2>"$scratch/error" || return 1
    step "installing $pip"
    docker build --tag "$tag" --label "neptune.recipe=$recipe" - <<EOF
FROM $base
RUN pip install --no-cache-dir --no-compile $pip
EOF
}

from_debian() {
    need mmdebstrap mmdebstrap "to build $tag without a registry"
    debian_sources >"$scratch/sources.list"
    local suite proxy
    suite=$(debian_suite "$scratch/sources.list")
    mapfile -t proxy < <(debian_proxy)
    step "building from Debian $suite with mmdebstrap"
    mmdebstrap --variant=essential --include="python3-minimal,$debian" "${proxy[@]}" \
        --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/lintian/*' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc "$1"/usr/share/zoneinfo' \
        --customize-hook='find "$1"/usr/lib/python3* -depth -name __pycache__ -exec rm -rf {} +' \
        --customize-hook='rm -rf "$1"/usr/lib/*/gconv "$1"/usr/lib/*/perl* "$1"/usr/lib/*/libperl* "$1"/usr/share/perl*' \
        "$suite" "$scratch/image.tar" "$scratch/sources.list"
    step "importing $tag"
    docker import --change "LABEL neptune.recipe=$recipe" --change 'ENV PYTHONUNBUFFERED=1' --change 'CMD ["python3"]' \
        "$scratch/image.tar" "$tag" >/dev/null
}

if ! from_registry; then
    sed 's/^/  /' "$scratch/error" >&2
    from_debian
fi
docker run --rm --network none "$tag" python3 -c "$check" || fail "$tag was built but cannot run: $check"
image_replaced "$tag" "${old%% *}"

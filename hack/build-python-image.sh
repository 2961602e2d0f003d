#!/usr/bin/env bash
# Builds the image of examples/helmet-detection: Python 3 with paho-mqtt and nothing else.
#
#   ./hack/build-python-image.sh [TAG]        TAG is neptune/python:dev unless given
#
# From python:slim where a registry and PyPI can be reached, else from this machine's own Debian sources
# (apt-get install mmdebstrap; as root or any user). Does nothing when the image was built by this recipe already.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

tag=${1:-neptune/python:dev}
case $tag in
    -*) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
base=python:3.13-slim
paho=2.1.0

need_docker

recipe=$(sha256sum "$0" | cut -d' ' -f1)
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.recipe"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$recipe" ]; then
    say "$tag is up to date"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

from_registry() {
    say "trying the registry for $base"
    timeout 60 docker pull --quiet "$base" >/dev/null 2>"$scratch/why" || return 1
    say "installing paho-mqtt $paho"
    docker build --tag "$tag" --label "neptune.recipe=$recipe" - <<EOF
FROM $base
RUN pip install --no-cache-dir --no-compile paho-mqtt==$paho
EOF
}

# The machine's own sources of its distribution, as one-line entries: other repositories are of no use here.
# Archives whose index was never fetched are unknown to apt, hence the update.
own_sources() {
    # shellcheck disable=SC2016  # apt replaces $(...), not the shell
    local list=(apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages')
    local origin
    origin=$(. /etc/os-release && case $ID in ubuntu) echo Ubuntu ;; *) echo Debian ;; esac)
    if ! "${list[@]}" "Origin: $origin" | grep -q . && [ "$(id -u)" = 0 ]; then
        apt-get update -qq >&2 || true
    fi
    "${list[@]}" "Origin: $origin" | sort -u
}

from_debian() {
    need mmdebstrap mmdebstrap "to build $tag without a registry"
    own_sources >"$scratch/sources.list"
    [ -s "$scratch/sources.list" ] || fail "no Debian sources are known here: run sudo apt-get update"
    # The suite of the distribution itself is the shortest: others append -updates, -security.
    local suite options=() key value
    suite=$(awk '{print length($3), $3}' "$scratch/sources.list" | sort -n | awk 'NR == 1 {print $2}')
    # mmdebstrap does not read the machine's proxy settings by itself.
    while read -r key value; do options+=("--aptopt=$key $value"); done < <(apt-config dump | grep -E '^Acquire::https?::Proxy ' || true)
    say "building from Debian $suite by mmdebstrap"
    mmdebstrap --variant=essential --include=python3-minimal,python3-paho-mqtt "${options[@]}" \
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
    say "importing $tag"
    docker import --change "LABEL neptune.recipe=$recipe" --change 'ENV PYTHONUNBUFFERED=1' --change 'CMD ["python3"]' \
        "$scratch/image.tar" "$tag" >/dev/null
}

if ! from_registry; then
    sed 's/^/  /' "$scratch/why" >&2
    from_debian
fi
docker run --rm --network none "$tag" python3 -c 'import json, paho.mqtt.client, urllib.request' ||
    fail "$tag was built but cannot import paho-mqtt"
# The image that had this name goes, unless a container still uses it.
[ -z "$old" ] || docker image rm "${old%% *}" >/dev/null 2>&1 || true
say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%.0f MB", $1 / 1e6}')"

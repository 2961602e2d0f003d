#!/usr/bin/env bash
# Builds the image of examples/llm: a llama.cpp server with the options of llama-server that Neptune uses. A stand-in for
# ghcr.io/ggml-org/llama.cpp:server where that cannot be pulled.
#
#   ./hack/build-llama-server-image.sh [TAG]        TAG: default neptune/llama-server:dev
#
# The server is the package xllamacpp of PyPI (llama.cpp as a module, 34 MB, pinned by its SHA-256) on Debian's Python,
# built from this machine's own Debian sources (apt-get install mmdebstrap). Does nothing if the image was already built
# by this script.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

tag=${1:-neptune/llama-server:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac
server=examples/llm/image/llama-server

need_docker

recipe=$(cat "hack/${0##*/}" "$server" examples/llm/pypi.txt | sha256sum | cut -d' ' -f1)
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.recipe"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$recipe" ]; then
    step "$tag is up to date"
    exit 0
fi

need_builders
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wheel=$(pypi_file xllamacpp)
python3 -m zipfile -e "$wheel" "$scratch/module"
debian_sources >"$scratch/sources.list"
suite=$(debian_suite "$scratch/sources.list")
mapfile -t proxy < <(debian_proxy)
step "building from Debian $suite with mmdebstrap (one minute)"
# shellcheck disable=SC2016  # mmdebstrap's hooks expand $1
mmdebstrap --quiet --variant=essential --include=python3,libgomp1,libstdc++6 "${proxy[@]}" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/lintian/*' \
    --customize-hook="cp -r $scratch/module/xllamacpp \"\$1\"/usr/lib/python3/dist-packages/" \
    --customize-hook="install -m 0755 $server \"\$1\"/usr/bin/llama-server" \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc "$1"/usr/share/zoneinfo' \
    --customize-hook='find "$1"/usr/lib/python3* -depth -name __pycache__ -exec rm -rf {} +' \
    --customize-hook='rm -rf "$1"/usr/lib/*/gconv "$1"/usr/lib/*/perl* "$1"/usr/lib/*/libperl* "$1"/usr/share/perl*' \
    "$suite" "$scratch/image.tar" "$scratch/sources.list"
step "importing $tag"
docker import --change "LABEL neptune.recipe=$recipe" --change 'ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1' \
    --change 'ENTRYPOINT ["/usr/bin/llama-server"]' "$scratch/image.tar" "$tag" >/dev/null
docker run --rm --network none "$tag" --help >/dev/null || fail "$tag was built but its server does not start"
image_replaced "$tag" "${old%% *}"

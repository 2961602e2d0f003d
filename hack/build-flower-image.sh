#!/usr/bin/env bash
# Builds the image of examples/flower: Python 3 with Flower (SuperLink, SuperNode, flwr) and NumPy, for servers and
# workers.
#
#   ./hack/build-flower-image.sh [TAG]      TAG: default neptune/flower:dev
#
# Built from this machine's own Debian sources (apt-get install mmdebstrap; as root or any user) and from PyPI, without
# a registry. Does nothing if the image was already built by this script.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=(flwr==1.41.0 numpy==2.3.5)
check='import flwr, numpy, sqlite3, ssl; print("Flower", flwr.__version__)'
tag=${1:-neptune/flower:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac

need_docker

recipe=$(sha256sum "$0" | cut -d' ' -f1)
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.recipe"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$recipe" ]; then
    step "$tag is up to date"
    exit 0
fi
need_builders

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

debian_sources >"$scratch/sources.list"
suite=$(debian_suite "$scratch/sources.list")
mapfile -t proxy < <(debian_proxy)
step "building from Debian $suite with mmdebstrap"
# NumPy of PyPI needs the library of C++.
mmdebstrap --quiet --variant=essential --include=python3,libstdc++6 "${proxy[@]}" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc "$1"/usr/share/zoneinfo' \
    --customize-hook='find "$1"/usr/lib/python3* -depth -name __pycache__ -exec rm -rf {} +' \
    "$suite" "$scratch/image.tar" "$scratch/sources.list"

version=$(tar --list --file "$scratch/image.tar" | sed -n 's|^\./usr/bin/python\(3\.[0-9]*\)$|\1|p')
step "installing ${packages[*]} for Python $version from PyPI"
pip=$(pip_command)
# Not in a container, which may have no way to PyPI.
"$pip" install --quiet --disable-pip-version-check --no-compile --only-binary :all: \
    --python-version "$version" --target "$scratch/root/opt/flower" "${packages[@]}" ||
    fail "${packages[*]} could not be installed: PyPI has to be reachable"
# Flower would install the dependencies of apps with uv. An app uses what is in the image.
rm -f "$scratch"/root/opt/flower/bin/uv "$scratch"/root/opt/flower/bin/uvx
sed -i '1s|^#!.*python.*|#!/usr/bin/python3|' "$scratch"/root/opt/flower/bin/*
tar --append --file "$scratch/image.tar" --owner 0 --group 0 --directory "$scratch/root" ./opt/flower

step "importing $tag"
docker import --change 'ENV PYTHONPATH=/opt/flower' --change 'ENV PYTHONUNBUFFERED=1' \
    --change 'ENV PATH=/opt/flower/bin:/usr/local/bin:/usr/bin:/bin' --change 'CMD ["python3"]' \
    --change "LABEL neptune.recipe=$recipe" "$scratch/image.tar" "$tag" >/dev/null
docker run --rm --network none --read-only --user 65532 "$tag" python3 -c "$check" ||
    fail "$tag was built but cannot run: $check"
image_replaced "$tag" "${old%% *}"

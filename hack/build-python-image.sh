#!/usr/bin/env bash
# Builds the image of examples/helmet-detection: Python 3 with paho-mqtt and the library of edge/python; with --numpy that
# of examples/federated: Python 3 with NumPy and that library; with --kserve a transformer that is built on the SDK of
# KServe.
#
#   ./hack/build-python-image.sh [--numpy|--kserve] [TAG]
#
# TAG: default neptune/python:dev, neptune/numpy:dev or neptune/kserve-transformer:dev. KServe comes from PyPI (pinned in
# hack/clients/requirements/kserve.txt). The others are built from python:slim if a registry and PyPI are reachable,
# otherwise from this machine's own Debian sources (with mmdebstrap; as root or any user). The images have the bytecode of
# their packages: without it each container compiles what it imports, a second for NumPy. Does nothing if the image was
# already built by this script.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

name=python pip=paho-mqtt==2.1.0 debian=python3-paho-mqtt check='import neptune_worker, paho.mqtt.client, urllib.request'
library=edge/python/neptune_worker list='' program='' run='CMD ["python3"]'
case ${1:-} in
    --numpy)
        name=numpy pip=numpy==2.3.5 debian=python3-numpy
        check='import neptune_worker, numpy; numpy.savez("/tmp/a.npz", a=numpy.ones(2))'
        shift ;;
    --kserve)
        name=kserve-transformer debian=python3,libstdc++6 check='import kserve' library=''
        list=$ROOT/hack/clients/requirements/kserve.txt program=$ROOT/hack/clients/kserve_transformer.py
        run='ENTRYPOINT ["python3", "/transformer.py"]'
        shift ;;
esac
tag=${1:-neptune/$name:dev}
case $tag in
    -*) usage "$0"; exit 0 ;;
esac
base=python:3.13-slim

need_docker

sources=()
[ -z "$library" ] || sources=("$ROOT/$library"/*.py)
recipe=$(cat "$0" ${list:+"$list" "$program"} "${sources[@]}" | sha256sum | cut -d' ' -f1)-$name
old=$(docker image inspect --format '{{.Id}} {{index .Config.Labels "neptune.recipe"}}' "$tag" 2>/dev/null || true)
if [ "${old#* }" = "$recipe" ]; then
    step "$tag is up to date"
    exit 0
fi

[ -z "$list" ] || need_builders
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# packages_hook FILE: writes a program that adds the packages of the list, for the Python of the system in the folder that
# is its argument, and the program.
packages_hook() {
    local installer
    installer=$(pip_command)
    cat >"$1" <<EOF
#!/bin/sh
set -e
version=\$(chroot "\$1" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$installer" install --quiet --disable-pip-version-check --no-compile --only-binary :all: --require-hashes \\
    --python-version "\$version" --target "\$1/usr/lib/python3/dist-packages" -r "$list"
cp "$program" "\$1/transformer.py"
EOF
    chmod +x "$1"
}

# library_hook FILE: writes a program that adds the library, for the Python of the system in the folder that is its
# argument.
library_hook() {
    cat >"$1" <<EOF
#!/bin/sh
set -e
target="\$1/usr/lib/python3/dist-packages/${library##*/}"
install -d -m 755 "\$target"
install -m 644 "$ROOT/$library"/*.py "$ROOT/$library/py.typed" "\$target"
EOF
    chmod +x "$1"
}

from_registry() {
    [ -z "$list" ] || return 1
    step "pulling $base"
    timeout 60 docker pull --quiet "$base" >/dev/null 2>"$scratch/error" || return 1
    step "installing $pip"
    mkdir "$scratch/context"
    cp -r "$ROOT/${library%/*}/"{pyproject.toml,README.md} "$ROOT/$library" "$scratch/context"
    docker build --tag "$tag" --label "neptune.recipe=$recipe" --file - "$scratch/context" <<EOF
FROM $base
COPY . /tmp/library
RUN pip install --no-cache-dir $pip && pip install --no-cache-dir --no-deps /tmp/library && rm -r /tmp/library
EOF
}

from_debian() {
    need mmdebstrap mmdebstrap "to build $tag without a registry"
    debian_sources >"$scratch/sources.list"
    local suite proxy
    suite=$(debian_suite "$scratch/sources.list")
    mapfile -t proxy < <(debian_proxy)
    step "building from Debian $suite with mmdebstrap${list:+, and from PyPI}"
    local hooks=()
    if [ -n "$list" ]; then
        packages_hook "$scratch/packages"
        hooks=(--customize-hook="$scratch/packages")
    fi
    if [ -n "$library" ]; then
        library_hook "$scratch/library"
        hooks+=(--customize-hook="$scratch/library")
    fi
    mmdebstrap --variant=essential --include="python3-minimal,$debian" "${proxy[@]}" \
        --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/lintian/*' \
        "${hooks[@]}" \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/usr/share/doc "$1"/usr/share/zoneinfo' \
        --customize-hook='chroot "$1" python3 -m compileall -q -j0 /usr/lib/python3*' \
        --customize-hook='rm -rf "$1"/usr/lib/*/gconv "$1"/usr/lib/*/perl* "$1"/usr/lib/*/libperl* "$1"/usr/share/perl*' \
        "$suite" "$scratch/image.tar" "$scratch/sources.list"
    step "importing $tag"
    docker import --change "LABEL neptune.recipe=$recipe" --change 'ENV PYTHONUNBUFFERED=1' --change "$run" \
        "$scratch/image.tar" "$tag" >/dev/null
}

if ! from_registry; then
    [ -n "$list" ] || sed 's/^/  /' "$scratch/error" >&2
    from_debian
fi
docker run --rm --network none --entrypoint python3 "$tag" -c "$check" || fail "$tag was built but cannot run: $check"
image_replaced "$tag" "${old%% *}"

#!/usr/bin/env bash
# Tests that neptune-edge fetch and neptune-cloud resolve get artifacts from docker-registry of Debian to which oras of
# PyPI and skopeo of Debian pushed them: without a login, with user and password, with tokens, and over a network that
# interrupts the download twenty times.
#
#   ./hack/test-registry.sh
#
# Installs packages into the target directory once (pinned in hack/clients/requirements/registry.txt). Takes a minute
# after that and the build. Needs no Docker, no access to a registry, and root only to install the Debian packages.
# NO_BUILD=1 uses the programs that ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
no_options "$@"

need_cargo
need_all <<<"$VENV
docker-registry|docker-registry|the registry of the tests
skopeo|skopeo|to push artifacts
openssl|openssl|to sign tokens"
environment=$(target_dir)/clients/registry
python_environment "$environment" hack/clients/requirements/registry.txt
build_programs --workspace --bin neptune-edge --bin neptune-cloud
programs=$(target_dir)/debug
step "running the checks"
"$environment/bin/python" -B hack/clients/registry.py "$programs/neptune-edge" "$programs/neptune-cloud" \
    "$(command -v docker-registry)"

#!/usr/bin/env bash
# Tests that the unmodified Python client of the model hub, huggingface_hub from PyPI, accepts the hub of the tests, and
# that neptune-edge fetch and neptune-cloud resolve get the same files, commits and digests from it. So the hub of the
# tests is no imagination.
#
#   ./hack/test-hub.sh
#
# Installs packages into the target directory once (pinned in hack/clients/requirements/hub.txt). Takes seconds after
# that and the build. Needs no Docker, no root and no access to a hub. NO_BUILD=1 uses the programs that
# ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
no_options "$@"

need_cargo
need_all <<<"$VENV"
environment=$(target_dir)/clients/hub
python_environment "$environment" hack/clients/requirements/hub.txt
build_programs --workspace --bin neptune-edge --bin neptune-cloud --example hub
programs=$(target_dir)/debug
step "running the checks"
coproc HUB { exec "$programs/examples/hub"; }
read -r url token <&"${HUB[0]}"
"$environment/bin/python" -B hack/clients/hub.py "$url" "$token" "$programs/neptune-edge" "$programs/neptune-cloud"

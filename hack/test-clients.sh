#!/usr/bin/env bash
# Tests the gateway with unmodified clients from PyPI: openai, tritonclient and kserve. Model servers, gateways and
# clients are processes on free ports of loopback. Easy answers have to reach the clients byte for byte, hard samples
# have to be the cloud's, and everything else has to be as without the gateway. `transformer` runs an unmodified
# transformer of KServe before its model server.
#
#   ./hack/test-clients.sh [omle-server|kserve|mlserver|model-server|transformer|llama.cpp]...
#
# Installs packages into the target directory once (2 GB, pinned in hack/clients/requirements; some minutes). Takes one
# minute after that and the build. Needs no Docker and no root. NO_BUILD=1 uses the programs that ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
for server in "$@"; do
    case $server in
        omle-server|kserve|mlserver|model-server|transformer|llama.cpp) ;;
        *) fail "unknown model server $server: expected omle-server, kserve, mlserver, model-server, transformer or llama.cpp" ;;
    esac
done

need_cargo
need_all <<<"$VENV"
environments=$(target_dir)/clients
# pypi_file verifies the file against examples/llm/pypi.txt each time.
wheel=$(pypi_file xllamacpp)
gguf=$(find "$(llm_model)" -name '*.gguf')
lists=hack/clients/requirements
# pip uses one core, and half of its time is waiting.
installations=()
python_environment "$environments/clients" "$lists/clients.txt" "$wheel" & installations+=($!)
python_environment "$environments/omle" "$lists/omle.txt" & installations+=($!)
python_environment "$environments/mlserver" "$lists/mlserver.txt" & installations+=($!)
for installation in "${installations[@]}"; do wait "$installation" || failed=1; done
[ -z "${failed:-}" ] || fail "an installation failed; see above"

build_programs -p neptune-gateway -p three-resources --bin neptune-gateway --bin model-server
programs=$(target_dir)/debug
step "running the checks"
exec "$environments/clients/bin/python" -B hack/clients/run.py "$ROOT" "$environments" "$programs/neptune-gateway" \
    "$programs/model-server" "$gguf" "$@"

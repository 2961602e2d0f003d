#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, and all tests, up to end to end
# with a real Docker engine, a real broker, kubectl and helm. Installs what is missing where it can.
#
#   ./hack/test.sh               all of it, against hack/devcluster
#   KUBECONFIG=... ./hack/test.sh    the end-to-end tests against that cluster instead
#   ./hack/test.sh NAME          format, lints and only the tests whose name contains NAME
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

need_cargo
need_docker
need mosquitto mosquitto "the broker of the tests"
need mosquitto_sub mosquitto-clients "to see what is published"
need kubectl kubernetes-client "the tests drive the API as a user does"
need busybox busybox-static "the tests' own image is made of it"
need systemd-analyze systemd "the unit is verified by it"
need_helm

say "format"
cargo fmt --all --check || fail "run: cargo fmt --all"

say "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

say "build"
cargo build --workspace --quiet

say "images"
./hack/build-digits-image.sh
./hack/build-model-server-image.sh
./hack/build-python-image.sh

say "tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --no-fail-fast --status-level "${TEST_STATUS_LEVEL:-slow}" --final-status-level slow ${1:+"$1"}
else
    cargo test --workspace --no-fail-fast --quiet -- ${1:+"$1"}
fi
cargo test --workspace --doc --quiet
say "all passed"

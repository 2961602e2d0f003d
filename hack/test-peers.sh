#!/usr/bin/env bash
# Three agents of a site get a model from an origin of 1 MB/s, over each transport: at most 1.15 times one transfer, and
# at most 1.05 times its bytes from the origin.
#
#   ./hack/test-peers.sh [MEGABYTES]        MEGABYTES: default 200; with less than 30, the start alone exceeds the goal
#
# Takes about 8 minutes with 200 MB. Needs mosquitto.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

size=${1:-200}
case $size in
    -h|--help) usage "$0"; exit 0 ;;
    ''|*[!0-9]*) fail "MEGABYTES needs a number, not $size" ;;
esac
need_cargo
need mosquitto mosquitto "the broker"
build_tests
NEPTUNE_PEERS_TEST_MB=$size cargo test --quiet --workspace --test e2e site_downloads_a_model_once -- \
    --nocapture --test-threads=1
step "all passed"

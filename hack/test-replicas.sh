#!/usr/bin/env bash
# Replicates a Dataset of 1 GB over built agents, through 20 cuts of each link, kills of the agents and appends. Prints
# the bytes that were sent.
#
#   ./hack/test-replicas.sh
#
# Needs 4 GB in /tmp, Docker and mosquitto.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

no_options "$@"
need_cargo
need_docker
build_tests
REPLICAS_REAL_SIZE=1 cargo test --workspace --test replicas copies_are_equal -- --nocapture

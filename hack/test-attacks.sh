#!/usr/bin/env bash
# Attacks the servers with clients that they do not know, 30 seconds with each attack, and prints what another client
# notices: requests lost, and the 99th percentile of their times without the attack and beside it. Fails if a request is
# lost, or if the percentile is above twice that without the attack and above 100 ms. hack/test.sh does the same for half a
# second each, without the bound of times.
#
#   ./hack/test-attacks.sh
#
# Takes about 28 minutes, and the build. The test of the agent needs Docker and mosquitto. The attackers, the servers and
# the client share the cores of this machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) usage "$0"; exit 0 ;; esac
need_cargo
need_docker
need mosquitto mosquitto "the broker of the agent's test"
need busybox busybox-static "the image of the agent's test"
step "building (the first time takes some minutes)"
packages=(-p neptune-cloud -p neptune-aggregator -p neptune-gateway -p neptune-peers -p neptune-edge)
cargo test --quiet --no-run "${packages[@]}"
step "attacking"
export NEPTUNE_ATTACKS=full
# One test at a time; each attacks in turn.
exec cargo test --quiet --no-fail-fast "${packages[@]}" attackers_delay -- --nocapture --test-threads=1

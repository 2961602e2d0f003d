#!/usr/bin/env bash
# Creates and deletes services at random moments with release builds of the programs, and checks that nothing is left
# behind: no container on a node, no retained message on a broker, no memory in the controller. Exits with 1 otherwise.
#
#   ./hack/soak.sh [--cycles 1000] [--transport mqtt|eventbus] [--seed N]
#
# Without --transport it uses both, one after the other: about five minutes each for 1000 cycles. Needs Docker,
# mosquitto, kubectl and a static busybox.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) usage "$0"; exit 0 ;; esac
need_cargo
need_docker
need mosquitto mosquitto "the broker"
need kubectl kubernetes-client "sets up the cluster"
need busybox busybox-static "the containers consist of it"

step "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-cloud -p neptune-edge -p devcluster -p eventbus-emulator -p neptune-soak
step "running"
exec "$(target_dir)/release/neptune-soak" "$@"

#!/usr/bin/env bash
# Floods the embedded broker of a released agent as a hostile worker can: a million messages, a hundred thousand client
# IDs, ten thousand retained topics. Fails if the agent uses 24 MiB or more, or if another worker's counters are not
# exact. Prints the memory before, at most and after.
#
#   ./hack/flood.sh
#
# Takes about five minutes, and ten more for the first build. Needs Docker, mosquitto and a static busybox.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) usage "$0"; exit 0 ;; esac
need_cargo
need_docker
need mosquitto mosquitto "the broker"
need busybox busybox-static "the containers of the workers consist of it"

step "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-edge
export NEPTUNE_EDGE_PROGRAM="$(target_dir)/release/neptune-edge" NEPTUNE_FLOOD=full
step "flooding the broker"
exec cargo test --quiet -p neptune-edge --test local_broker -- \
    --exact flood_is_bounded_in_memory_and_leaves_other_counters_exact --nocapture

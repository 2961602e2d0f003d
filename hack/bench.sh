#!/usr/bin/env bash
# Measures the released programs (release builds) on this machine: sizes; start, memory and counting of the agent; the
# time from kubectl apply to running workers compared with `docker run`; the controller with a thousand nodes. Prints
# figures without limits, because machines differ.
#
#   ./hack/bench.sh [--nodes 1000] [--messages 200000] [--starts 20] [--controller-only]
#   ./hack/bench.sh --cost --nodes 10000        what an event costs the controller of a large fleet: create until the
#                                               node's message, report until the status and the same without the
#                                               controller, CPU per report compared with 100 nodes, restart with dead
#                                               nodes. Twelve minutes, 3 GiB of memory
#   ./hack/bench.sh --fleet 64,3000,10000       one service on all nodes: apply, change, reports, a node that joins or leaves,
#                                               restart; bytes in etcd and on the wire
#   ./hack/bench.sh gateway [--rounds 5]        the gateway beside Envoy and nginx
#   ./hack/bench.sh sedna [--rounds 3]          the gateway beside an imitation of Sedna's library
#
# Takes five minutes, and as long again for the first build. Needs Docker, mosquitto, kubectl and a static busybox.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in
    -h|--help) usage "$0"; exit 0 ;;
    gateway|sedna) script=./hack/bench-$1.sh; shift; exec "$script" "$@" ;;
esac
need_cargo
need_docker
need mosquitto mosquitto "the broker"
need mosquitto_pub mosquitto-clients "publishes as workers do"
need kubectl kubernetes-client "applies resources as a user does"
need busybox busybox-static "the measured containers consist of it"

step "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-cloud -p neptune-edge -p devcluster -p neptune-bench
release=$(target_dir)/release
step "measuring"
uname -sr
nproc | sed 's/$/ cores/'
for program in neptune-cloud neptune-edge; do
    printf '%-43s %s KiB\n' "$program" $(($(stat -c %s "$release/$program") / 1024))
done
exec "$release/neptune-bench" "$@"

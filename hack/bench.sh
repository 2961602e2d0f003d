#!/usr/bin/env bash
# What the programs cost and how quick they are, as they are shipped (release builds), on this machine: sizes, the
# agent's start, memory and counting, the time from kubectl apply to running workers beside `docker run`, and the
# controller with a thousand nodes. Prints figures and judges none: machines differ.
#
#   hack/bench.sh [--nodes 1000] [--messages 200000] [--starts 20]
#
# Takes five minutes, and as long again for the first build. Needs Docker, mosquitto, kubectl and a static busybox.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
need_cargo
need_docker
need mosquitto mosquitto "the broker"
need mosquitto_pub mosquitto-clients "says what workers say"
need kubectl kubernetes-client "applies as a user does"
need busybox busybox-static "the containers that are started"

say "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-cloud -p neptune-edge -p devcluster -p neptune-bench
release=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
say "measuring"
uname -sr
nproc | sed 's/$/ cores/'
for program in neptune-cloud neptune-edge; do
    printf '%-43s %s KiB\n' "$program" $(($(stat -c %s "$release/$program") / 1024))
done
exec "$release/neptune-bench" "$@"

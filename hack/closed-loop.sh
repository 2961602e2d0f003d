#!/usr/bin/env bash
# Shows the closed loop: joint inference records its hard samples, a training starts by itself when there are enough of
# them, and the better model replaces the one in use, while requests go on. Prints a table, and draws it.
#
#   ./hack/closed-loop.sh [FILE.svg]        FILE.svg: default closed-loop.svg
#
# New digits (7 to 9) appear that the edge's first model has never seen. Exits with 1 if a request failed, if the
# accuracy did not recover, or if the share of uploads left its goal. Takes about two minutes, and some for the first
# build. Needs Docker and mosquitto.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

file=${1:-closed-loop.svg}
case $file in
    -*) usage "$0"; exit 0 ;;
esac
need_cargo
need_docker
need mosquitto mosquitto "the broker"
need python3 python3 "to draw the table"

build_tests
./hack/build-gateway-image.sh
./hack/build-model-server-image.sh
./hack/build-python-image.sh --numpy
log=$(mktemp)
trap 'rm -f "$log"' EXIT
step "running"
cargo test --quiet --workspace --test e2e closed_loop -- --nocapture | tee "$log" | grep -v '^plot '
sed -n 's/^plot //p' "$log" | python3 hack/closed-loop-plot.py >"$file"
step "$file"

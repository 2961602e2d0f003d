#!/usr/bin/env bash
# Tests the gateway under faults, longer than ./hack/test.sh does: outages of the cloud in all the ways that clouds and
# networks fail, for whole answers and for streams, and kills of the gateway and its agent while samples are counted.
# Prints a table per kind of outage, and what was counted. Exits with 1 if a request failed, if easy samples became
# slower, if the cloud was used again too late, if the cap was exceeded, or if a count is not exact.
#
#   ./hack/test-gateway-faults.sh [outages|kills] [--outages 50] [--kills 50] [--seed N]
#
# A fifth as many outages are tested with streams that are held, and with streams that are passed on. Takes about 20
# minutes for the outages and 15 for the kills, and some minutes for the first build. Latencies are compared within one
# run; on a busy machine they fail. The kills need Docker, mosquitto and a static busybox.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

what=all
export NEPTUNE_OUTAGES=50 NEPTUNE_KILLS=50 NEPTUNE_SEED=$RANDOM
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        outages|kills) what=$1; shift ;;
        --outages|--kills|--seed)
            [ $# -ge 2 ] || fail "$1 needs a number"
            case $2 in ''|*[!0-9]*) fail "$1 needs a number, not $2" ;; esac
            declare -x "NEPTUNE_$(printf '%s' "${1#--}" | tr a-z A-Z)=$2"; shift 2 ;;
        *) fail "unknown argument $1: expected outages, kills, --outages N, --kills N or --seed N (see $0 --help)" ;;
    esac
done
need_cargo

step "building"
cargo build --quiet -p neptune-gateway -p three-resources -p neptune-edge
failed=()
if [ "$what" != kills ]; then
    step "outages (seed $NEPTUNE_SEED)"
    cargo test --quiet -p neptune-gateway --test outages -- --test-threads=1 --nocapture || failed+=(outages)
fi
if [ "$what" != outages ]; then
    need_docker
    need mosquitto mosquitto "the broker"
    need busybox busybox-static "the containers consist of it"
    step "kills (seed $NEPTUNE_SEED)"
    cargo test --quiet -p neptune-edge --test gateway_kills -- --nocapture || failed+=(kills)
fi
[ ${#failed[@]} = 0 ] || fail "failed: ${failed[*]}"
step "all passed"

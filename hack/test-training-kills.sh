#!/usr/bin/env bash
# Tests that kills during a training change nothing: a training of ten rounds on three nodes is repeated while agents,
# controller, aggregator, broker and containers are killed (-9), 20 times per run. The final weights of each run have to
# have the digest of the undisturbed one. With both transports.
#
#   ./hack/test-training-kills.sh [--runs 5] [--seed N]
#
# Takes about two minutes per run and transport. Needs Docker and mosquitto. ./hack/test.sh does one run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

export NEPTUNE_RUNS=5 NEPTUNE_SEED=$RANDOM
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        --runs|--seed)
            [ $# -ge 2 ] || fail "$1 needs a number"
            case $2 in ''|*[!0-9]*) fail "$1 needs a number, not $2" ;; esac
            declare -x "NEPTUNE_$(printf '%s' "${1#--}" | tr a-z A-Z)=$2"; shift 2 ;;
        *) fail "unknown argument $1: expected --runs N or --seed N (see $0 --help)" ;;
    esac
done
need_cargo
need_builders
need mosquitto mosquitto "the broker"

build_tests
./hack/build-python-image.sh --numpy
./hack/build-aggregator-image.sh
step "killing (seed $NEPTUNE_SEED)"
cargo test --quiet --workspace --test e2e training_kills -- --test-threads=1 --nocapture
step "all passed"

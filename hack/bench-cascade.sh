#!/usr/bin/env bash
# Checks the goals of joint inference: the share of uploads for different orders of samples, the cap for any sequence of
# requests, and the accuracy of the digits. Prints each figure with its limit, and exits with 1 if one is missed.
#
#   ./hack/bench-cascade.sh
#
# Needs no network, no Docker and no other programs. Takes seconds after the build.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    "") ;;
    -h|--help) usage "$0"; exit 0 ;;
    *) fail "unknown argument $1 (see $0 --help)" ;;
esac

need_cargo
step "building"
cargo build --quiet -p digits --example cascade
cargo test --quiet -p neptune-cascade --lib --no-run
status=0
step "the digits"
cargo run --quiet -p digits --example cascade || status=1
step "any sequence: property tests of the cap and of the bounds of both ratios"
cargo test --quiet -p neptune-cascade --lib -- \
    uploads_never_exceed_the_cap hard_samples_never_differ bound_holds_for_any_sequence || status=1
[ $status = 0 ] || fail "a goal is missed: see above"

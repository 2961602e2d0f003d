# The cluster: what it has to have, images, installation by kustomize and by Helm, removal. Source it after
# table.sh.
# shellcheck shell=bash

# The namespace of the examples.
space=neptune-test
# The objects of an installation that are in no namespace.
installed_kinds=clusterroles,clusterrolebindings,validatingwebhookconfigurations
mapfile -t crds < <(cd "$ROOT/crds" && ls ./*.yaml | sed 's|^\./\(.*\)\.yaml$|\1|')

server_version() { kubectl get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p'; }
api_server() { kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}'; }

# ready_nodes EDGE: the names of Ready nodes that take Pods, with (true) or without (false) the label of edge nodes. No
# kubelet stands behind the nodes neptune-test-*.
ready_nodes() {
    local selector='!node-role.kubernetes.io/edge'
    [ "$1" = false ] || selector=node-role.kubernetes.io/edge
    kubectl get nodes -l "$selector" --no-headers | awk '$2 == "Ready" && $1 !~ /^neptune-test-/ {print $1}'
}

# node_address NODE: its InternalIP.
node_address() { kubectl get node "$1" -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}'; }

# leftovers: what an installation left in the cluster, one object per line.
leftovers() {
    kubectl get crd "${crds[@]}" --ignore-not-found -o name
    kubectl get namespace neptune-system "$space" --ignore-not-found -o name
    kubectl get "$installed_kinds" -l app.kubernetes.io/part-of=neptune -o name
    kubectl get edgenodes -o name 2>/dev/null | grep '/neptune-test-' || true
}

# require_cluster: what the variables and the cluster lack. Changes nothing.
require_cluster() {
    local missing=() found version
    has kubectl || fail "kubectl is missing: install it, on Debian with: sudo apt-get install kubernetes-client"
    [ -n "${KUBECONFIG:-}" ] || missing+=("KUBECONFIG: an administrator's, of the cluster")
    [ -n "${LOAD_IMAGE:-}${REGISTRY:-}" ] ||
        missing+=("LOAD_IMAGE: a command that gets an image archive on standard input; or REGISTRY: HOST/PATH")
    [ -z "${LOAD_IMAGE:-}" ] || [ -z "${REGISTRY:-}" ] || missing+=("one of LOAD_IMAGE and REGISTRY, not both")
    if [ -n "${KUBECONFIG:-}" ]; then
        if ! version=$(server_version 2>&1) || [ -z "$version" ]; then
            missing+=("a cluster that answers: $(kubectl get --raw /version 2>&1 | tail -n 1)")
        else
            [ "$(kubectl auth can-i '*' '*' --all-namespaces 2>/dev/null)" = yes ] ||
                missing+=("all rights in the cluster: the user of KUBECONFIG is no administrator")
            found=$(leftovers | tr '\n' ' ')
            [ -z "$found" ] || missing+=("a cluster without Neptune: it has ${found% }")
            [ -n "$(ready_nodes false)" ] || missing+=("a Ready node without the label node-role.kubernetes.io/edge")
        fi
    fi
    [ ${#missing[@]} = 0 ] || {
        printf 'missing: %s\n' "${missing[@]}" >&2
        fail "nothing was changed (see $0 --help)"
    }
}

# address: the address of this machine for Pods.
address() {
    local host
    host=$(api_server | sed 's|^[a-z]*://||; s|[:/].*||')
    case $host in 127.*|localhost|'') host=192.0.2.1 ;; esac
    ip route get "$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}')" | sed -n 's/.* src \([^ ]*\).*/\1/p'
}

# build_images: the images of this checkout, and of the examples, in the nodes' container runtimes.
build_images() {
    step "building programs and images (the first time takes some minutes)"
    ADDRESS=${ADDRESS:-$(address)}
    # It also builds the program of the agents on this machine.
    cloud_image=$(TAG=real-cluster built neptune-cloud:real-cluster ./build/images.sh)
    edge_image=$(published neptune-edge:real-cluster)
    digits_image=$(built neptune/digits:dev ./hack/build-digits-image.sh)
    server_image=$(built neptune/model-server:dev ./hack/build-model-server-image.sh)
    python_image=$(built neptune/python:dev ./hack/build-python-image.sh)
    numpy_image=$(built neptune/numpy:dev ./hack/build-python-image.sh --numpy)
    cloud_node=$(ready_nodes false | head -n 1)
    edge_node=$(ready_nodes true | head -n 1)
}

# built IMAGE COMMAND...: builds an image, and publishes it.
built() {
    local image=$1
    shift
    "$@" >&2
    published "$image"
}

# published IMAGE: gives an image of this machine's Docker to the cluster, and prints its name there. Agents on this
# machine find it by that name, too.
published() {
    local image=$1 name=$1
    if [ -n "${REGISTRY:-}" ]; then
        # A node that has an image of the same tag would not pull it again.
        name=$REGISTRY/${image%:*}:$(docker image inspect --format '{{.Id}}' "$image" | cut -c 8-19)
        docker tag "$image" "$name"
        docker push --quiet "$name" >&2 || fail "docker cannot push $name"
    else
        docker save "$image" | bash -c "$LOAD_IMAGE" >&2 || fail "LOAD_IMAGE failed for $image"
    fi
    printf '%s\n' "$name"
}

# overlay: a copy of build/deploy/mqtt with the images of this run; prints its path.
overlay() {
    local copy=$work/build entry
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -r build/deploy build/acl "$copy"
    for entry in "neptune-cloud $cloud_image" "neptune-edge $edge_image" "eclipse-mosquitto ${MOSQUITTO_IMAGE:-}"; do
        [ -n "${entry#* }" ] || continue
        sed -i "/- name: ${entry%% *}$/{n;s|.*|    newName: ${entry#* }|;s|\(.*\):\(.*\)|\1\n    newTag: \"\2\"|}" \
            "$copy/deploy/mqtt/kustomization.yaml"
    done
    printf '%s\n' "$copy/deploy/mqtt"
}

install_kustomize() {
    date +%s >"$work/installed"
    kubectl apply -k "$(overlay)"
    installed
}

uninstall_kustomize() {
    date +%s >"$work/installed"
    stop_fleet
    kubectl delete -k "$(overlay)" --ignore-not-found --timeout=180s
    nothing_left
}

install_helm() {
    local mosquitto=()
    date +%s >"$work/installed"
    [ -z "${MOSQUITTO_IMAGE:-}" ] ||
        mosquitto=(--set-string "broker.image.repository=${MOSQUITTO_IMAGE%:*},broker.image.tag=${MOSQUITTO_IMAGE##*:}")
    "$(helm_command)" install neptune build/helm/neptune -n neptune-system --create-namespace "${mosquitto[@]}" \
        --set-string "controller.image.repository=${cloud_image%:*},controller.image.tag=${cloud_image##*:}" \
        --set-string "agent.image.repository=${edge_image%:*},agent.image.tag=${edge_image##*:}"
    installed
}

# Helm leaves the CRDs and the namespace.
uninstall_helm() {
    stop_fleet
    "$(helm_command)" uninstall neptune -n neptune-system --ignore-not-found --wait --timeout 180s
    kubectl delete -f crds --ignore-not-found --timeout=120s
    kubectl delete namespace neptune-system --ignore-not-found --timeout=180s
    nothing_left
}

# installed: waits until CRDs, broker and controller are ready.
installed() {
    local begin=$SECONDS
    kubectl wait --for=condition=Established --timeout=60s "${crds[@]/#/crd/}"
    kubectl -n neptune-system rollout status deployment/neptune-mosquitto --timeout=180s
    kubectl -n neptune-system rollout status deployment/neptune-join --timeout=180s
    kubectl -n neptune-system rollout status deployment/neptune-cloud --timeout=180s ||
        fail "the controller is not ready: $(kubectl -n neptune-system logs deployment/neptune-cloud --tail=1)"
    note "ready after $((SECONDS - begin)) s"
}

# webhook_warns: the API server reaches the admission webhook, which warns about Models that do not exist.
webhook_warns() {
    warned() { kubectl apply --dry-run=server -f examples/digits/service.yaml 2>&1 | grep -q '^Warning: .*digits-small'; }
    await 60 "the webhook to warn about a missing Model" warned
}

nothing_left() {
    local left
    left=$(leftovers | tr '\n' ' ')
    [ -z "$left" ] || fail "still there: $left"
}

end_to_end() {
    local log summary status=0
    log=$(log_of "e2e tests")
    # Tests apply the CRDs of KubeEdge's rules, too.
    local rules=(rules.rules.kubeedge.io ruleendpoints.rules.kubeedge.io) before
    before=$(kubectl get crd "${rules[@]}" --ignore-not-found -o name)
    ./hack/test.sh e2e >"$log" 2>&1 || status=$?
    kubectl delete -f crds --ignore-not-found --timeout=120s
    [ -n "$before" ] || kubectl delete crd "${rules[@]}" --ignore-not-found --timeout=60s
    summary=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | sed -n 's/^ *Summary \[[^]]*\] *//p' | tail -n 1)
    [ $status = 0 ] || fail "${summary:-no test ran} (see $log)"
    note "$summary"
}

# diagnosis: what a failed row leaves to look at.
diagnosis() {
    printf -- '--- objects of %s\n' "$space"
    kubectl -n "$space" get jointinferenceservices,inferencemodels,trainingmodels,models,pods -o wide
    kubectl -n "$space" get events --sort-by=.metadata.creationTimestamp | tail -n 15
    printf -- '--- neptune-system\n'
    kubectl -n neptune-system get pods -o wide
    kubectl -n neptune-system get events --sort-by=.metadata.creationTimestamp | tail -n 10
    kubectl -n neptune-system logs -l app.kubernetes.io/name=neptune-cloud --tail=5 --prefix
}

# clean_up: removes what this run made, also after an error in the middle.
clean_up() {
    local left
    stop_fleet >/dev/null 2>&1 || true
    left=$(leftovers 2>/dev/null || true)
    [ -n "$left" ] || return 0
    step "removing what is left"
    {
        "$(helm_command)" uninstall neptune -n neptune-system --ignore-not-found
        kubectl delete namespace "$space" neptune-system --ignore-not-found --timeout=180s
        kubectl delete -f crds --ignore-not-found --timeout=120s
        kubectl delete "$installed_kinds" -l app.kubernetes.io/part-of=neptune --timeout=60s
    } >"$work/logs/clean-up.log" 2>&1 || true
    left=$(leftovers 2>/dev/null | tr '\n' ' ')
    [ -z "$left" ] || printf 'remove by hand: %s\n' "$left" >&2
}

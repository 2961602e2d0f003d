# The examples, with cloud workers, model servers and aggregators as Pods where the cluster can. Source it after fleet.sh.
# shellcheck shell=bash

# delete_all: removes the objects of an example, and waits until the nodes run nothing.
delete_all() {
    kubectl -n "$space" delete jointinferenceservices,inferencemodels,trainingmodels,datasets,models --all --timeout=60s
    await 60 "the containers to be removed" no_containers "${fleet[@]}"
    # shellcheck disable=SC2317  # await calls it
    no_pods() { [ -z "$(kubectl -n "$space" get deployments -o name)" ]; }
    await 60 "the Deployments to be removed" no_pods
}

# example_row NAME FUNCTION [REMOVAL]: a row that leaves nothing, also if it failed: the next one uses the same ports.
example_row() {
    local status
    depends "examples install" "$1" "$2"
    [ -e "$work/pids" ] || return 0
    set +e
    (set -e; "${3:-delete_all}") >>"$(log_of "$1")" 2>&1
    status=$?
    set -e
    [ $status = 0 ] || failed_result "$1, removal" - "$(sed -n 's/^error: //p' "$(log_of "$1")" | tail -n 1)"
}

# count_digits NAME NODE: waits until the edge worker of a service has processed all samples, and compares the status with
# the line that the worker printed.
count_digits() {
    local name=$1 node=$2 line key counted
    await_newest 180 "jis/$name" Completed
    # It asks the cloud for all samples before it prints the line.
    # shellcheck disable=SC2317  # await calls it
    printed() { docker logs "$(containers "$node")" 2>/dev/null | grep '"passes"' >"$work/line"; }
    await 60 "the line of the worker" printed
    line=$(tail -n 1 "$work/line")
    for key in inferenceNumber hardExampleNumber; do
        counted=$(printf '%s' "$line" | sed -n "s/.*\"$key\":\([0-9]*\).*/\1/p")
        [ -n "$counted" ] || fail "the worker printed no $key: $line"
        [ "$(metric "jis/$name" $key)" = "$counted" ] ||
            fail "$key is $(metric "jis/$name" $key) in the status, and the worker counted $counted"
    done
    [ "$counted" -gt 0 ] || fail "no sample was decided by the cloud: $line"
    note "$(metric "jis/$name" inferenceNumber) samples, $counted by the cloud"
}

# examples/digits with an agent on both nodes.
digits_by_agents() {
    start_fleet "${fleet[@]}"
    example digits/models.yaml | kubectl apply -f -
    example digits/service.yaml | kubectl apply -f -
    count_digits digits neptune-test-edge0
    note "$(cat "$work/note"), $(($(date +%s) - $(cat "$work/installed"))) s after the installation began"
}

# The same with the cloud worker in a Pod.
digits_in_pods() {
    example digits/models.yaml | kubectl apply -f -
    example digits/service.yaml "s/nodeName: \"cloud0\"/nodeName: $cloud_node/" | kubectl apply -f -
    count_digits digits neptune-test-edge0
}

# The same on an edge node of the cluster, with the agent of the DaemonSet.
digits_by_daemonset() {
    node_settings create
    kubectl -n neptune-system delete pod -l app.kubernetes.io/name=neptune-edge --wait=false
    kubectl -n neptune-system rollout status daemonset/neptune-edge --timeout=120s
    example digits/models.yaml | kubectl apply -f -
    example digits/service.yaml "s/nodeName: \"cloud0\"/nodeName: $cloud_node/; s/\"edge0\"/$edge_node/" | kubectl apply -f -
    await_newest 180 jis/digits Completed
    note "$(metric jis/digits inferenceNumber) samples, $(metric jis/digits hardExampleNumber) by the cloud"
}

# The agent of the DaemonSet removes its containers before its node loses its settings.
delete_on_edge_node() {
    delete_all
    # shellcheck disable=SC2317  # await calls it
    removed() { kubectl -n neptune-system logs daemonset/neptune-edge | grep -q 'containers removed'; }
    await 60 "the agent to remove its containers" removed
    node_settings delete
}

# node_settings create|delete: /etc/neptune and /var/lib/neptune of the cluster's edge node, by a Pod on it. The Pod that
# creates them runs the agent's image, as docs/install.md describes it for nodes of the DaemonSet.
node_settings() {
    local token='' image=$edge_image command
    [ "$1" = create ] || [ -e "$work/joined" ] || return 0
    case $1 in
        create)
            token=$("$(target_dir)/debug/neptune-cloud" enroll "$edge_node" --output csv | tail -n 1 | cut -d, -f3)
            command="[neptune-edge, join, 'https://$(node_address "$cloud_node"):30884', --no-unit]" ;;
        delete)
            image=$python_image
            command='[sh, -c, "rm -rf /etc/neptune/* /var/lib/neptune/*"]' ;;
    esac
    kubectl -n "$space" delete pod node-settings --ignore-not-found
    kubectl -n "$space" create -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: node-settings}
spec:
  nodeName: $edge_node
  restartPolicy: Never
  tolerations: [{operator: Exists}]
  containers:
    - name: settings
      image: $image
      command: $command
      env: [{name: NEPTUNE_JOIN_TOKEN, value: "$token"}]
      securityContext: {runAsUser: 0, runAsNonRoot: false}
      volumeMounts:
        - {name: etc, mountPath: /etc/neptune}
        - {name: data, mountPath: /var/lib/neptune}
        - {name: engine, mountPath: /var/run/docker.sock}
  volumes:
    - {name: etc, hostPath: {path: /etc/neptune, type: DirectoryOrCreate}}
    - {name: data, hostPath: {path: /var/lib/neptune, type: DirectoryOrCreate}}
    - {name: engine, hostPath: {path: /var/run/docker.sock, type: Socket}}
END
    kubectl -n "$space" wait pod/node-settings --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s ||
        fail "node $edge_node did not join: $(kubectl -n "$space" logs node-settings | tail -n 5 | tr '\n' ' ')"
    touch "$work/joined"
    [ "$1" = create ] || kubectl delete edgenode "$edge_node" --ignore-not-found
}

# client OPTION...: examples/three-resources' client on the edge node, which prints one line.
client() {
    docker run --rm --network host --entrypoint /digits-client neptune/model-server:dev "$@" | tail -n 1
}

# same_counters NAME LINE: the status of a service has the counters of the client, and the cloud answered some samples. The
# gateway reports once a second.
same_counters() {
    local key
    for key in inferenceNumber hardExampleNumber; do
        local counted
        counted=$(printf '%s' "$2" | sed -n "s/.*\"$key\":\([0-9]*\).*/\1/p")
        # shellcheck disable=SC2317  # await calls it
        equal() { [ "$(metric "jis/$1" "$2")" = "$3" ]; }
        await 30 "$key $counted in the status of $1" equal "$1" "$key" "$counted"
    done
    [ "$counted" != 0 ] || fail "the cloud of $1 answered nothing: $(reason_of "jis/$1")"
    note "$(printf '%s' "$2" | sed 's/[{}"]//g; s/,/, /g')"
}

frameworks() { example three-resources/frameworks.yaml | kubectl apply -f -; }

# examples/digits without code: the model server of the cloud is a Pod.
digits_without_code() {
    local line
    frameworks
    example digits/models.yaml | kubectl apply -f -
    example digits/gateway.yaml "s/nodeName: cloud0/nodeName: $cloud_node/" | kubectl apply -f -
    await_newest 120 jis/digits-gateway Running
    line=$(client --model digits-small)
    same_counters digits-gateway "$line"
}

# examples/three-resources: the cloud's model is a Deployment.
three_resources() {
    local line
    frameworks
    example three-resources/models.yaml '/nodeName: cloud0/d' | kubectl apply -f -
    example three-resources/service.yaml | kubectl apply -f -
    await_newest 120 jis/digits-joint Running
    line=$(client)
    same_counters digits-joint "$line"
}

# examples/three-tiers: the topmost model is a Pod.
three_tiers() {
    local path
    frameworks
    example three-tiers/models.yaml "s|\${MODEL_SERVER}|$(cat "$work/files")|" | kubectl apply -f -
    example three-tiers/services.yaml "s/nodeName: cloud0/nodeName: $cloud_node/" | kubectl apply -f -
    await_newest 120 jis/box Running
    await_newest 60 jis/cam Running
    path=$(sed -n 21,23p examples/digits/data/test.csv | sed 's/,[0-9]$//' | paste -sd, |
        sed 's/.*/{"inputs": [{"name": "pixels", "shape": [3, 64], "datatype": "FP32", "data": [&]}]}/' |
        curl -sSi http://127.0.0.1:8080/v2/models/digits-small/infer -H 'Content-Type: application/json' -d @- |
        tr -d '\r' | sed -n 's/^x-neptune-path: //p')
    [ -n "$path" ] || fail "the answer has no x-neptune-path"
    note "$path"
}

# training_data: the data of the nodes, and the rights in the namespace, as its owner grants them (docs/install.md).
training_data() {
    ./examples/federated/split.py "$work/data"
    cp examples/digits/data/test.csv "$work/data"
    kubectl -n "$space" create rolebinding neptune-training --clusterrole=neptune-training \
        --serviceaccount=neptune-system:neptune-cloud --dry-run=client -o yaml | kubectl apply -f -
    example federated/datasets.yaml "s|/code/data/federated|$work/data|" | kubectl -n "$space" apply -f -
}

# succeeded SECONDS: waits until the training has succeeded.
succeeded() {
    kubectl -n "$space" wait tm/digits --for=jsonpath='{.status.phase}'=Succeeded --timeout="$1s" ||
        fail "the training did not succeed: $(reason_of tm/digits)"
}

# examples/federated: the aggregator is a Pod with a volume.
federated() {
    local digest
    training_data
    digest=$(sha256sum <examples/federated/train.py | cut -d' ' -f1)
    example federated/training.yaml "s|\${SCRIPT_SHA256}|$digest|" | kubectl -n "$space" apply -f -
    succeeded 900
    note "round $(kubectl -n "$space" get tm digits -o 'jsonpath={.status.round}'), accuracy $(metric tm/digits accuracy)"
}

# examples/flower: its SuperLink is a container of the aggregator's Pod, and is killed (-9) after the first round.
flower() {
    local server digest image
    image=$(built neptune/flower:dev ./hack/build-flower-image.sh)
    start_fleet "${fleet[@]}"
    mkdir -p "$work/app"
    tar -czf "$work/app/program.tar.gz" -C examples/flower/app .
    digest=$(sha256sum <"$work/app/program.tar.gz" | cut -d' ' -f1)
    server=$(free_port)
    background app python3 -m http.server "$server" --bind "$ADDRESS" -d "$work/app"
    training_data
    example flower/frameworks.yaml "s|neptune/flower:dev|$image|" | kubectl apply -f -
    example flower/training.yaml "s|\${SCRIPT_SERVER}|http://$ADDRESS:$server|; s|\${SCRIPT_SHA256}|$digest|" |
        kubectl -n "$space" apply -f -
    await 300 "round 1" first_round
    # shellcheck disable=SC2016  # the shell in the container expands it
    kubectl -n "$space" exec "$(kubectl -n "$space" get deployments -o name)" -c server -- /bin/sh -c \
        'for process in /proc/[0-9]*; do
            if tr "\0" " " <"$process/cmdline" | grep -q "python.*flower-superlin[k]"; then kill -9 "${process#/proc/}"; fi
        done'
    succeeded 900
    note "attempt $(kubectl -n "$space" get tm digits -o 'jsonpath={.status.attempt}'), accuracy $(metric tm/digits accuracy)"
}
first_round() { [ "$(kubectl -n "$space" get tm digits -o 'jsonpath={.status.round}')" -ge 1 ]; }

# A device of a Pod: the node offers one, the first cloud worker gets it, and the Pod of a second service waits for it.
devices_in_pods() {
    local path=/status/capacity/neptune.io~1test-device limits='resources: {limits: {neptune.io/test-device: 1}}' kind name
    kubectl patch node "$cloud_node" --subresource=status --type=json -p "[{\"op\":\"add\",\"path\":\"$path\",\"value\":\"1\"}]"
    example digits/models.yaml | kubectl apply -f -
    for name in digits waiting; do
        kind='s/nodeName: "cloud0"/nodeName: '$cloud_node/
        example digits/service.yaml "$kind" "/cloudWorker:/,\$ s|^    workerSpec:|&\n      $limits|" \
            "s/^  name: digits$/  name: $name/" | kubectl apply -f -
        # shellcheck disable=SC2317  # await calls it
        settled() {
            local reason
            reason=$(reason_of "jis/$name")
            if [ "$name" = digits ]; then running_pods 1; else printf '%s' "$reason" | grep -q 'neptune.io/test-device'; fi
        }
        await 90 "$name to have the device, or to wait for it" settled
    done
    note "$(reason_of jis/waiting | cut -c 1-120)"
    kubectl patch node "$cloud_node" --subresource=status --type=json -p "[{\"op\":\"remove\",\"path\":\"$path\"}]"
}
# running_pods NUMBER: as many Pods with the device run.
running_pods() {
    [ "$(kubectl -n "$space" get pods -o json | grep -c '"neptune.io/test-device"')" -ge "$1" ] &&
        [ "$(kubectl -n "$space" get pods --field-selector=status.phase=Running --no-headers | wc -l)" -ge "$1" ]
}

# Kubernetes replaces $$ and $(NAME) in Pods: what the user wrote arrives nevertheless. The worker prints its environment.
dollars_in_pods() {
    # shellcheck disable=SC2016  # nothing is to be replaced
    local text='a$$b $(NAMESPACE)' worker
    worker="scriptBootFile: env\n      parameters: [{key: text, value: \"$text\"}]"
    example digits/models.yaml | kubectl apply -f -
    example digits/service.yaml "s/nodeName: \"cloud0\"/nodeName: $cloud_node/" \
        "/cloudWorker:/,\$ {s|neptune/digits:dev|$python_image|; s|scriptBootFile: \"cloud\"|$worker|}" |
        kubectl apply -f -
    # shellcheck disable=SC2317  # await calls it
    printed() {
        local deployment
        deployment=$(kubectl -n "$space" get deployments -o name)
        kubectl -n "$space" logs --all-containers "${deployment:?}" | grep '^TEXT=' >"$work/text"
    }
    await 60 "the environment of the cloud worker" printed
    grep -Fqx "TEXT=$text" "$work/text" || fail "the worker got $(cat "$work/text") instead of $text"
    note "$text arrives"
}

# probe: whether Pods reach this machine, and whether this machine reaches Services.
pods_reach_files() {
    local port
    port=$(sed 's/.*://' "$work/files")
    kubectl -n "$space" run probe --image "$python_image" --restart=Never --command -- python3 -c \
        "import urllib.request; urllib.request.urlopen('http://$ADDRESS:$port/', timeout=5)"
    kubectl -n "$space" wait pod/probe --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s
}
services_from_here() {
    curl -sk --max-time 5 -o /dev/null "https://$(kubectl get service kubernetes -o 'jsonpath={.spec.clusterIP}')/livez"
}
default_storage_class() {
    kubectl get storageclasses \
        -o 'jsonpath={.items[*].metadata.annotations.storageclass\.kubernetes\.io/is-default-class}' | grep -q true
}

run_examples() {
    local pods='' storage='' name
    example_row digits digits_by_agents
    pods_reach_files >"$work/logs/probe.log" 2>&1 || pods="Pods do not reach this machine at $ADDRESS (see ADDRESS)"
    [ -n "$pods" ] || services_from_here || pods="this machine does not reach the cluster's Services"
    default_storage_class || storage="no default StorageClass for the aggregator's volume"
    for name in digits_in_pods digits_without_code three_resources three_tiers dollars_in_pods devices_in_pods; do
        if [ -n "$pods" ]; then skip "$name" "$pods"; else example_row "$name" "$name"; fi
    done
    if [ -n "$pods$storage" ]; then skip federated "${pods:-$storage}"; else example_row federated federated; fi
    if [ -z "$edge_node" ]; then
        skip "digits by the DaemonSet" "no Ready node has the label node-role.kubernetes.io/edge"
    else
        example_row "digits by the DaemonSet" digits_by_daemonset delete_on_edge_node
    fi
    for name in closed-loop transformer helmet-detection; do
        skip "$name" "runs no Pod: the step e2e runs it on this cluster"
    done
    skip selection "runs no Pod: the step e2e tests selection"
    [ -n "$has_flower" ] || skip flower "an image of 300 MB: the step flower, and ./hack/test-flower.sh"
    skip llm "a model of 127 MB: ./hack/test-llm.sh"
}

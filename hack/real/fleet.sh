# Nodes whose agents run on this machine, with its Docker. They join the cluster at its NodePorts.
# Source it after cluster.sh.
# shellcheck shell=bash

# The nodes of the examples, which call them edge0, edge1, edge2, box0 and cloud0.
fleet=(neptune-test-edge0 neptune-test-edge1 neptune-test-edge2 neptune-test-box0 neptune-test-cloud0)

# background NAME COMMAND...: starts a command in a process group of its own, which stop_fleet ends.
background() {
    local name=$1
    shift
    setsid "$@" >"$work/logs/$name.log" 2>&1 &
    echo $! >>"$work/pids"
}

# start_fleet NODE...: nodes that enroll and join as a person does, and an agent per node. Models and scripts of the
# examples are served at $files. Does nothing if it runs.
start_fleet() {
    local node port
    [ ! -e "$work/pids" ] || return 0
    port=$(free_port)
    background files python3 -m http.server "$port" --bind "$ADDRESS" -d examples
    echo "http://$ADDRESS:$port" >"$work/files"
    join_nodes "$@"
    for node in "$@"; do start_agent "$node"; done
    kubectl create namespace "$space"
}

# join_nodes NODE...: no Node object, no kubelet and no password: the token is all that a machine gets.
join_nodes() {
    local node url token expires begin=$SECONDS
    "$(target_dir)/debug/neptune-cloud" enroll "$@" --ttl 10m --output csv >"$work/tokens"
    while IFS=, read -r node url token expires; do
        [ "$node" != node ] || continue
        mkdir -p "$work/nodes/$node"
        NEPTUNE_JOIN_TOKEN=$token "$(target_dir)/debug/neptune-edge" join "$url" --no-unit \
            --settings "$work/nodes/$node.env" --data-dir "$work/nodes/$node" --node-name "$node"
    done <"$work/tokens"
    printf '%s nodes enrolled and joined in %s s\n' $# "$((SECONDS - begin))"
}

# start_agent NODE: the agent with the settings of its join.
start_agent() {
    # shellcheck disable=SC2016  # the inner shell replaces them
    background "$1" bash -c 'set -a; . "$1"; set +a; shift; exec "$@"' settings "$work/nodes/$1.env" \
        "$(target_dir)/debug/neptune-edge" run --data-dir "$work/nodes/$1" --runtime-dir "$work/run/$1" \
        --local-listen "127.0.0.1:$(free_port)" --advertise-address "$ADDRESS" --allow-address "$ADDRESS" \
        --allow-data-dir "$work/data"
}

# stop_fleet: ends the agents, and removes their nodes, containers and namespace.
stop_fleet() {
    local node pid
    if [ -e "$work/pids" ]; then
        kubectl delete namespace "$space" --ignore-not-found --timeout=120s
        while read -r pid; do kill -- "-$pid" 2>/dev/null || true; done <"$work/pids"
        rm -f "$work/pids"
    fi
    for node in "${fleet[@]}"; do
        # The engine refuses what is being removed: the agent may have begun it.
        containers "$node" -a | xargs --no-run-if-empty docker rm -f || true
        await 30 "the containers of $node to be removed" no_containers "$node"
        kubectl delete edgenode "$node" --ignore-not-found
        rm -rf "${work:?}/nodes/$node" "$work/nodes/$node.env" "$work/run/$node"
    done
}

# containers NODE OPTION...: the IDs of a node's containers.
containers() {
    local node=$1 label
    shift
    for label in node training-node; do
        docker ps -q --no-trunc --filter "label=io.neptune.$label=$node" "$@"
    done
}

# no_containers NODE...: the nodes run nothing.
no_containers() {
    local node
    for node in "$@"; do [ -z "$(containers "$node" -a)" ] || return 1; done
}

# example FILE EXPRESSION...: prints an example's manifest for these nodes, this namespace and these images, after the
# expressions of sed.
example() {
    local file=examples/$1 expressions=() expression
    shift
    for expression in "$@"; do expressions+=(-e "$expression"); done
    sed "${expressions[@]}" \
        -e "s|\${MODEL_SERVER}|$(cat "$work/files")/digits/models|; s|\${SCRIPT_SERVER}|$(cat "$work/files")/federated|" \
        -e "s/^  namespace: default/  namespace: $space/" \
        -e 's/\b\(edge[012]\|box0\|cloud0\)\b/neptune-test-\1/g' \
        -e "s|neptune/digits:dev|$digits_image|; s|neptune/model-server:dev|$server_image|" \
        -e "s|neptune/numpy:dev|$numpy_image|" "$file"
}

# metric KIND/NAME KEY: a counter or a metric of a status.
metric() { kubectl -n "$space" get "$1" -o "jsonpath={.status.metrics[?(@.key==\"$2\")].value}"; }

# reason_of KIND/NAME: reason and message of the newest condition.
reason_of() {
    kubectl -n "$space" get "$1" -o 'jsonpath={.status.conditions[-1:].reason}: {.status.conditions[-1:].message}'
}

# await_newest SECONDS KIND/NAME TYPE: waits until the newest condition has this type.
await_newest() {
    kubectl -n "$space" wait "$2" --for=jsonpath='{.status.conditions[-1:].type}'="$3" --timeout="$1s" ||
        fail "$2 is not $3: $(reason_of "$2")"
}

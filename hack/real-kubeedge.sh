#!/usr/bin/env bash
# Runs tests of hack/e2e over a real KubeEdge: cloudcore with its router, and an edgecore with EventBus for each node.
# Prints a table, and exits with 1 if a row failed.
#
#   CLOUDCORE=FILE EDGECORE=FILE KUBECONFIG=FILE ./hack/real-kubeedge.sh [STEP...]
#   CLOUDCORE=FILE EDGECORE=FILE APISERVER=FILE CONTROLLER_MANAGER=FILE ETCD=FILE ./hack/real-kubeedge.sh [STEP...]
#
#   mosquitto   kills (-9) each component while a service counts: worker container, cloudcore, edgecore, mosquitto,
#               controller and agent; the status must end with exactly the counts of the workers. Each node has a
#               mosquitto (mqttMode: 2)
#   edgecore    the same with the broker within edgecore (mqttMode: 0)
#   tests       all other tests with the name kubeedge: most of them run over an emulator in ./hack/test.sh e2e
#   NAME        only some of them, by a part of the name
#
# Without a step it does all of them. KUBECONFIG is an administrator's, of a cluster without KubeEdge and Neptune; with
# APISERVER (kube-apiserver), CONTROLLER_MANAGER and ETCD it starts a cluster on loopback. After the build, mosquitto and
# edgecore take about 8 minutes each, and tests 17. A copy of a Dataset is watched for 120 idle seconds, or
# NEPTUNE_IDLE_SECONDS. Needs Docker and mosquitto. The programs of KubeEdge and Kubernetes
# are yours: this script builds nothing but Neptune.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
. hack/real/table.sh

steps=()
for argument in "$@"; do
    case $argument in
        -h|--help) usage "$0"; exit 0 ;;
        -*) fail "unknown option $argument (see $0 --help)" ;;
        *) steps+=("$argument") ;;
    esac
done
[ ${#steps[@]} -gt 0 ] || steps=(mosquitto edgecore tests)

# What this run may leave in a cluster, and must not find there.
kubeedge_crds=(rules.rules.kubeedge.io ruleendpoints.rules.kubeedge.io
    objectsyncs.reliablesyncs.kubeedge.io clusterobjectsyncs.reliablesyncs.kubeedge.io)
mapfile -t neptune_crds < <(basename --suffix .yaml crds/*.yaml)
present() {
    kubectl get namespace kubeedge --ignore-not-found -o name
    kubectl get crd "${kubeedge_crds[@]}" "${neptune_crds[@]}" --ignore-not-found -o name
}

missing=()
for variable in CLOUDCORE EDGECORE; do
    [ -x "${!variable:-}" ] || missing+=("$variable: the path of $(printf '%s' $variable | tr A-Z a-z)")
done
if [ -n "${APISERVER:-}${CONTROLLER_MANAGER:-}${ETCD:-}" ]; then
    [ -z "${KUBECONFIG:-}" ] || missing+=("one of KUBECONFIG and APISERVER, not both")
    for variable in APISERVER CONTROLLER_MANAGER ETCD; do
        [ -x "${!variable:-}" ] || missing+=("$variable: the path of a program")
    done
elif [ -z "${KUBECONFIG:-}" ]; then
    missing+=("KUBECONFIG: an administrator's, of a cluster; or APISERVER, CONTROLLER_MANAGER and ETCD: paths of programs")
elif ! found=$(present 2>&1); then
    missing+=("a cluster that answers: $(printf '%s' "$found" | tail -n 1)")
elif [ -n "$found" ]; then
    missing+=("a cluster without KubeEdge and Neptune: it has $(printf '%s' "$found" | tr '\n' ' ')")
fi
[ ${#missing[@]} = 0 ] || {
    printf 'missing: %s\n' "${missing[@]}" >&2
    fail "nothing was changed (see $0 --help)"
}

need_docker
need_all <<<"mosquitto|mosquitto|the broker of the nodes
kubectl|kubernetes-client|the test uses the API as a user does
openssl|openssl|for the key of the API server"
need_cargo

work=$(target_dir)/real-kubeedge
rm -rf "$work"
mkdir -p "$work/logs"
servers=()
clean_up() {
    if [ ${#servers[@]} -gt 0 ]; then
        # Nothing of them is kept, and an API server whose etcd is gone does not end by itself.
        kill -9 "${servers[@]}" 2>/dev/null || true
        wait "${servers[@]}" 2>/dev/null || true
    else
        kubectl delete namespace kubeedge --ignore-not-found --timeout=60s
        kubectl delete crd "${kubeedge_crds[@]}" "${neptune_crds[@]}" --ignore-not-found --timeout=60s
    fi >"$work/logs/clean-up.log" 2>&1
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# start_cluster: etcd, an API server and a controller manager on loopback.
start_cluster() {
    local client peer port
    step "starting etcd and the API server"
    client=http://127.0.0.1:$(free_port) peer=http://127.0.0.1:$(free_port) port=$(free_port)
    openssl genrsa -out "$work/key" 2048 2>/dev/null
    echo real-kubeedge,admin,admin,system:masters >"$work/tokens"
    "$ETCD" --data-dir "$work/etcd" --unsafe-no-fsync --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
        >"$work/logs/etcd.log" 2>&1 &
    servers+=($!)
    "$APISERVER" --etcd-servers "$client" --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port "$port" \
        --cert-dir "$work" --token-auth-file "$work/tokens" --authorization-mode AlwaysAllow \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$work/key" \
        --service-account-signing-key-file "$work/key" --service-cluster-ip-range 10.97.0.0/16 \
        --disable-admission-plugins ServiceAccount >"$work/logs/apiserver.log" 2>&1 &
    servers+=($!)
    export KUBECONFIG=$work/kubeconfig
    cat >"$KUBECONFIG" <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "real",
 "clusters": [{"name": "real", "cluster": {"server": "https://127.0.0.1:$port", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "real", "user": {"token": "real-kubeedge"}}],
 "contexts": [{"name": "real", "context": {"cluster": "real", "user": "real"}}]}
END
    await 120 "the API server (see $work/logs)" kubectl get namespace default
    # No kubelet reports the state of the tests' nodes.
    "$CONTROLLER_MANAGER" --kubeconfig "$KUBECONFIG" --service-account-private-key-file "$work/key" --leader-elect=false \
        --controllers '*,-node-lifecycle-controller' --bind-address 127.0.0.1 --secure-port "$(free_port)" \
        >"$work/logs/controller-manager.log" 2>&1 &
    servers+=($!)
}

kills=power::kubeedge::totals_never_decrease_and_end_exact_after_kills
kills_edgecore=power::totals_end_exact_after_kills_with_the_broker_of_edgecore

# end_to_end TEST: runs a test of hack/e2e.
end_to_end() {
    # Not by nextest, which ends a test after five minutes.
    cargo test --quiet --workspace --test e2e -- --ignored --exact --nocapture "$1" >"$work/output" 2>&1 ||
        fail "$(sed -n '/ panicked at /{n;p;q}' "$work/output" | cut -c 1-120)"
    grep -q '^test result: ok. 1 passed' "$work/output" || fail "hack/e2e has no test $1"
    note "$(sed -n 's/^status: /samples in the status: /p' "$work/output")"
}

diagnosis() { tail -n 200 "$work/output"; }

# counting BROKER TEST: a row for the test, and one per component that it killed.
counting() {
    local target seconds
    row "$1" end_to_end "$2"
    while read -r target seconds; do
        result "$1, $target killed" passed "$seconds" "counts again"
    done < <(sed -n 's/^\([A-Z][a-z]*\) killed: \([0-9.]*\) s .*/\1 \2/p' "$work/output")
    cp "$work/output" "$(log_of "$1 output")"
}

# tests_of PART: the other tests whose name has this part.
tests_of() {
    cargo test --quiet --workspace --test e2e -- --ignored --list | sed -n 's/^\(.*::kubeedge::.*\): test$/\1/p' |
        grep -vx "$kills" | grep -F -- "$1"
}

[ -z "${APISERVER:-}" ] || start_cluster
build_tests
for build in build-{digits,gateway,aggregator,model-server,python}-image.sh "build-python-image.sh --numpy"; do
    # shellcheck disable=SC2086  # program and option
    ./hack/$build
done
server=$(kubectl get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p')
for step in "${steps[@]}"; do
    step "$step"
    part=$step
    case $step in
        mosquitto) counting "$step" "$kills"; continue ;;
        edgecore) counting "$step" "$kills_edgecore"; continue ;;
        tests) part='' ;;
    esac
    tests=$(tests_of "$part") || fail "hack/e2e has no test over KubeEdge with the name $part"
    for test in $tests; do row "${test/::kubeedge::/ }" end_to_end "$test"; done
done
table "Kubernetes $server, $CLOUDCORE, $EDGECORE"

#!/usr/bin/env bash
# Runs the shell blocks of README.md, docs and the examples, and prints a table of those that ran and of those that did
# not, with the reason.
#
#   ./hack/test-docs.sh [--keep] [TEXT]...     all of them, or those whose page and name contain one of the texts
#
# The info string of each block decides (hack/repo-checks refuses others):
#   sh test=NAME         the blocks of one name in a page are one script of bash with set -eu
#   sh test=NAME with=cluster    in it kubectl and helm use an empty Kubernetes API (hack/devcluster), in which what the
#                        chart installs runs as processes
#   sh test=NAME with=fleet      also a fleet of the nodes edge0 and cloud0, which have joined
#   sh skip="REASON"     it is not run
# The manifests of the pages are created, too, with a dry run.
# A block in an HTML comment prepares or checks what readers need not see. A script runs in a copy of the repository's
# folder, of links. ${BOX} is a folder of its own, and ${ADDRESS} an address of loopback that no other script has.
#
# --keep leaves the folders of the scripts, with the logs, and prints where. NO_BUILD=1 uses the programs that
# ./hack/test.sh built. Needs Docker, kubectl, helm and mosquitto. Takes two minutes after the build.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

keep='' texts=()
for argument in "$@"; do
    case $argument in
        -h|--help) usage "$0"; exit 0 ;;
        --keep) keep=1 ;;
        -*) fail "unknown option $argument (see $0 --help)" ;;
        *) texts+=("$argument") ;;
    esac
done

need_cargo
need_all <<<"mosquitto|mosquitto|the broker of the scripts
mosquitto_sub|mosquitto-clients|to receive what is published
kubectl|kubernetes-client|the scripts use the API as a user does
openssl|openssl|pages make keys
curl|curl|to ask whether the controller is ready"
need_helm
need_docker
# The agents of the scripts remove containers of their nodes that they do not know.
containers() { docker ps --all --quiet --filter label=io.neptune.node=edge0; docker ps --all --quiet --filter label=io.neptune.node=cloud0; }
[ -z "$(containers)" ] || fail "this machine has containers of a node edge0 or cloud0, which the scripts would remove"
build_programs "${QUIET[@]}" -p devcluster -p neptune-cloud -p neptune-edge -p neptune-gateway -p repo-checks -p digits --bins

BIN=$(target_dir)/debug
HELM=$(command -v "$(helm_command)")
export ROOT BIN HELM
work=$(mktemp -d -t neptune-docs.XXXXXX)
group=''
# end_group: stops all processes of a script, and removes the containers of its nodes.
end_group() {
    [ -n "$group" ] || return 0
    kill -TERM -- "-$group" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 -- "-$group" 2>/dev/null || break; sleep 0.1; done
    kill -KILL -- "-$group" 2>/dev/null || true
    group=''
    containers | xargs --no-run-if-empty docker rm --force >/dev/null
}
cleanup() { end_group; [ -n "$keep" ] || rm -rf "$work"; }
trap cleanup EXIT
mkdir "$work/blocks"
"$BIN/repo-checks" blocks "$work/blocks"

# The manifests of the pages are created with a dry run of the server. hack/devcluster has no Ingress.
# shellcheck disable=SC2016  # expanded in the sandbox
echo 'kubectl apply -f crds/ >/dev/null
sed "s/namespace: NAMESPACE/namespace: default/" "$BOX/../blocks/manifests.yaml" |
    awk "BEGIN {RS = \"\\n---\\n\"; ORS = RS} !/\nkind: Ingress\n/" | kubectl create --dry-run=server -f -' >"$work/blocks/manifests.sh"
echo 'manifests cluster manifests all' >>"$work/blocks/scripts"

# prepare SANDBOX: what a script finds, before its own lines. It runs in the shell of the script.
prepare() {
    # shellcheck disable=SC2016  # expanded in the sandbox
    [ "$1" = shell ] || echo '. "$ROOT/hack/docs/cluster.sh"'
    # shellcheck disable=SC2016
    [ "$1" != fleet ] || echo 'helm install neptune build/helm/neptune -n neptune-system --create-namespace >/dev/null
for name in cloud0 edge0; do
    neptune-cloud enroll "$name" >/dev/null
    neptune-edge join URL "npt1:$name:..." >/dev/null
done
for name in cloud0 edge0; do kubectl wait --for=condition=Ready "edgenode/$name" --timeout=30s >/dev/null; done'
}

# run NUMBER SANDBOX: runs a script in a sandbox.
run() {
    local box=$work/$1 entry
    mkdir -p "$box/files" "$box/home"
    # Links, so that what a page writes beside the files of the repository is not in the repository.
    for entry in "$ROOT"/*; do [ "$entry" = "$ROOT/target" ] || ln -s "$entry" "$box/files/"; done
    { echo 'set -eu'; [ ${#network[@]} = 0 ] || echo 'ip link set lo up'; prepare "$2"; cat "$work/blocks/$1.sh"; } >"$box/script"
    # A group of processes, so that all of them can be stopped.
    (cd "$box/files" && exec setsid env HOME="$box/home" BOX="$box" KUBECONFIG="$box/kubeconfig" \
        ADDRESS="127.$((RANDOM % 200 + 20)).$((RANDOM % 250)).$((RANDOM % 250 + 1))" \
        PATH="$ROOT/hack/docs/bin:$box/bin:$BIN:$PATH" \
        "${network[@]}" timeout --foreground 120 bash "$box/script") >"$box/output" 2>&1 </dev/null &
    group=$!
    local status=0
    wait "$group" || status=$?
    end_group
    return $status
}

# selected TEXT: whether the arguments select a script.
selected() {
    [ ${#texts[@]} != 0 ] || return 0
    local text
    for text in "${texts[@]}"; do [[ $1 != *$text* ]] || return 0; done
    return 1
}

# As root, each script has a network of its own: the node ports of the pages may be those of a cluster on this machine.
network=()
if [ "$(id -u)" = 0 ] && has ip && has unshare; then network=(unshare --net); fi

step "running the blocks"
results=() bad=0
while read -r number sandbox name place; do
    selected "$place $name" || continue
    began=$SECONDS
    mkdir -p "$work/$number/bin"
    ln -s "$BIN/neptune-cloud" "$work/$number/bin/kubectl-neptune"
    if run "$number" "$sandbox"; then result=passed; else result=FAILED bad=$((bad + 1)); fi
    line=$(printf '%-8s %-48s %-22s %-8s %3d s' "$result" "$place" "$name" "$sandbox" $((SECONDS - began)))
    results+=("$line")
    echo "$line"
    if [ "$result" = FAILED ]; then
        tail -n 30 "$work/$number/output" | sed 's/^/    /'
        grep -hE ' (WARN|ERROR) ' "$work/$number"/*.log 2>/dev/null | tail -n 20 | sed 's/^/    | /' || true
    fi
done <"$work/blocks/scripts"
if [ ${#texts[@]} = 0 ]; then
    while read -r place reason; do printf '%-8s %-48s %s\n' skipped "$place" "$reason"; done <"$work/blocks/skipped"
fi
[ -z "$keep" ] || step "the folders are in $work"
[ $bad = 0 ] || fail "$bad of ${#results[@]} scripts failed: see above"
step "${#results[@]} scripts passed"

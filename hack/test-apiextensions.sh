#!/usr/bin/env bash
# Judges the CRDs, the manifests and hack/devcluster by the CRD API server of Kubernetes (apiextensions-apiserver). Builds
# that server from the Debian packages of its source, and runs it on loopback with etcd.
#
#   sudo ./hack/test-apiextensions.sh               builds the server if it is missing, judges, cleans up
#   sudo ./hack/test-apiextensions.sh --if-changed  does nothing if the server is missing, and nothing has changed since it
#                                                   passed (hack/apiextensions/passed)
#   sudo ./hack/test-apiextensions.sh --record      writes hack/apiextensions/passed when it passes; commit the file
#   sudo ./hack/test-apiextensions.sh --rebuild     builds the server again, from the current packages
#   sudo ./hack/test-apiextensions.sh --keep        leaves the server running until Ctrl-C, for kubectl
#   SPECIFICATION=FOLDER ...                        also judges the manifests in the Markdown files of a folder
#
# The server has to accept every CRD, every sample, and every manifest for its kinds in docs, examples, build and README.md
# (server-side apply with a dry run), and to refuse every case of cloud/tests/refused and CRDs without a bounded cost. Both
# servers get these and more than a hundred other requests, and commands of kubectl; their answers have to be equal except
# for the known differences in hack/devcluster/tests/real. The packages come from Debian's unstable suite, and the version
# of Kubernetes changes with it.
#
# Building needs root (for mmdebstrap and chroot), Debian, a network, 3 minutes on two cores, and 4 GB in the target folder
# until it is done. Only mmdebstrap is installed on the host. The programs (120 MB) stay in ~/.cache/neptune/apiextensions,
# which may be deleted; with them it takes a minute and needs no root.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

only_changed='' record='' rebuild='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        --if-changed) only_changed=1 ;;
        --record) record=1 ;;
        --rebuild) rebuild=1 ;;
        --keep) keep=1 ;;
        *) fail "unknown option $1 (see ./hack/test-apiextensions.sh --help)" ;;
    esac
    shift
done

programs=${XDG_CACHE_HOME:-$HOME/.cache}/neptune/apiextensions
passed=$ROOT/hack/apiextensions/passed
# A change of the program is another server; a change of this script alone is not.
source=$(sha256sum <hack/apiextensions/main.go | cut -c1-16)

# judged: the digest of all files on which the result depends, committed or not. A digest is the same after a rebase or in
# another clone, and a commit can contain it.
judged() {
    local judged=(README.md build cloud/tests/refused common/api common/cel-cost crds docs examples hack/apiextensions
        hack/devcluster hack/test-apiextensions.sh)
    git -c safe.directory="$ROOT" ls-files -z --cached --others --exclude-standard --deduplicate -- "${judged[@]}" |
        LC_ALL=C sort -z | while IFS= read -r -d '' file; do
            [ ! -f "$file" ] || [ "$file" = hack/apiextensions/passed ] || sha256sum "$file"
        done | sha256sum | cut -d' ' -f1
}

# recorded NAME: a field of the file that --record wrote.
recorded() { sed -n "s/^$1=//p" "$passed" 2>/dev/null; }

is_built() { [ "$(cat "$programs/source" 2>/dev/null)" = "$source" ]; }

# build: the programs server and etcd in $programs, and the version of Kubernetes.
build() {
    [ "$(id -u)" = 0 ] || fail "run it as root: it unpacks Debian packages and runs Go in a chroot"
    need mmdebstrap "mmdebstrap debian-archive-keyring" "unpacks packages of Debian's unstable suite"
    local suite version proxy
    mkdir -p "$(target_dir)"
    work=$(mktemp -d "$(target_dir)/apiextensions.XXXXXX")
    suite=$work/suite
    step "unpacking Go, etcd and the source of Kubernetes from Debian's unstable suite (1 minute, 2.7 GB)"
    mapfile -t proxy < <(debian_proxy)
    # A mirror without updates is accepted: packages are checked by signature, not by date.
    mmdebstrap --quiet --variant=extract --mode=root --aptopt='Acquire::Check-Valid-Until "false"' "${proxy[@]}" \
        --include=base-files,golang-go,golang-k8s-apiextensions-apiserver-dev,etcd-server \
        unstable "$suite" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} || fail "not judged: the packages of Debian's unstable suite" \
        "cannot be unpacked, see the messages above${only_changed:+; judged files have changed since hack/apiextensions/passed was written}"

    step "building the API server (2 minutes on two cores)"
    mkdir -p "$suite/build/source" "$suite/build/.config/go/telemetry"
    echo off >"$suite/build/.config/go/telemetry/mode"
    cp hack/apiextensions/main.go "$suite/build/source"
    version=$(zcat "$suite/usr/share/doc/golang-k8s-apiextensions-apiserver-dev/changelog.Debian.gz" | sed -n '1s/.*(0\.\([0-9.]*\).*/v1.\1/p')
    [ -n "$version" ] || fail "cannot find the version in the changelog of the package"
    # Without optimization and debug information, and with less garbage collection, the compiler needs half the time.
    env -i PATH=/usr/bin HOME=/build GOROOT="/usr/lib/$(cd "$suite/usr/lib" && echo go-1.*)" GOPATH=/usr/share/gocode \
        GO111MODULE=off GOTOOLCHAIN=local GOCACHE=/build/cache CGO_ENABLED=0 GOGC=400 \
        nice "$(PATH=$PATH:/usr/sbin command -v chroot)" "$suite" /usr/bin/go build -gcflags 'all=-N -l -dwarf=false' \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o /build/server /build/source/main.go

    rm -rf "$programs"
    mkdir -p "$programs"
    mv "$suite/build/server" "$suite/usr/bin/etcd" "$programs"
    echo "$source" >"$programs/source"
    rm -rf --one-file-system "$work"
    step "built the API server of Kubernetes $version"
}

work='' run='' children=()
cleanup() {
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
    rm -rf --one-file-system ${work:+"$work"} ${run:+"$run"}
}
trap cleanup EXIT

digest=$(judged)
if [ -n "$only_changed" ] && [ -z "$rebuild" ] && ! is_built && [ "$digest" = "$(recorded digest)" ]; then
    step "not judged: the server is not built, and nothing has changed since Kubernetes $(recorded kubernetes) accepted it on $(recorded date)"
    exit
fi
need_cargo
need kubectl kubernetes-client "the test compares its output"
# The present programs are kept if the new ones cannot be built.
if [ -n "$rebuild" ] || ! is_built; then build; fi

step "starting etcd and the API server"
run=$(mktemp -d)
client=http://127.0.0.1:$(free_port) peer=http://127.0.0.1:$(free_port) port=$(free_port)
"$programs/etcd" --data-dir "$run/etcd" --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    --unsafe-no-fsync >"$run/etcd.log" 2>&1 &
children+=($!)
"$programs/server" -port "$port" -etcd "$client" -cert-dir "$run" >"$run/server.log" 2>&1 &
children+=($!)
# The server accepts every client. Without a token kubectl prompts for a user name.
cat >"$run/kubeconfig" <<END
{"apiVersion": "v1", "kind": "Config", "current-context": "real",
 "clusters": [{"name": "real", "cluster": {"server": "https://127.0.0.1:$port", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "real", "user": {"token": "any"}}],
 "contexts": [{"name": "real", "context": {"cluster": "real", "user": "real", "namespace": "default"}}]}
END
for _ in $(seq 300); do
    ! kubectl --kubeconfig "$run/kubeconfig" get --raw /readyz >/dev/null 2>&1 || break
    kill -0 "${children[1]}" 2>/dev/null || break
    sleep 0.1
done
kubectl --kubeconfig "$run/kubeconfig" get --raw /readyz >/dev/null ||
    { tail -n 5 "$run/server.log" "$run/etcd.log" >&2 || true; fail "the API server does not answer"; }
version=$(kubectl --kubeconfig "$run/kubeconfig" get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p')
step "Kubernetes $version is ready"

if [ -n "$keep" ]; then
    step "running until Ctrl-C; try: kubectl --kubeconfig $run/kubeconfig get crd"
    trap 'exit 0' INT TERM
    wait "${children[1]}"
fi

step "judging (1 minute)"
# The documents of the specification may lie beside the repository.
specification=${SPECIFICATION:-$ROOT/../shared/spec}
[ ! -d "$specification" ] || export SPECIFICATION=$specification
# With the features of the whole workspace nothing is compiled twice.
RUST_BACKTRACE=0 DEVCLUSTER_REAL_KUBECONFIG=$run/kubeconfig \
    cargo test --workspace --test real --quiet -- --ignored --nocapture
if [ -n "$record" ]; then
    cat >"$passed" <<END
# Written by ./hack/test-apiextensions.sh --record when everything was accepted. The digest is that of all judged files.
digest=$digest
kubernetes=$version
date=$(date -u +%F)
END
    step "wrote hack/apiextensions/passed: commit it"
fi
step "Kubernetes $version accepts the CRDs and manifests; no new differences of devcluster"

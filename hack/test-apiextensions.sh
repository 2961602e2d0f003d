#!/usr/bin/env bash
# Compares hack/devcluster and the CRDs with the CRD API server of Kubernetes (apiextensions-apiserver). Builds that server
# from the Debian packages of its source, and runs it on loopback with etcd.
#
#   sudo ./hack/test-apiextensions.sh            builds what is missing, compares, cleans up
#   sudo ./hack/test-apiextensions.sh --keep     leaves the server running until Ctrl-C, for kubectl
#
# Both servers get the same requests: every CRD, every refused case of cloud/tests/refused, every sample and example, more
# than a hundred other requests, and commands of kubectl. hack/devcluster/tests/real has the requests and the known
# differences. Not part of hack/test.sh: the packages come from Debian's unstable suite, and the version of Kubernetes
# changes with it.
#
# Needs root (for mmdebstrap and chroot), a Debian host and a network. The first run takes about 10 minutes and 4.5 GB in
# target/apiextensions, which may be deleted; later runs take 1 minute. Only mmdebstrap is installed on the host.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -h|--help) usage "$0"; exit 0 ;;
    ""|--keep) ;;
    *) fail "unknown option $1 (see ./hack/test-apiextensions.sh --help)" ;;
esac
[ "$(id -u)" = 0 ] || fail "run it as root: it unpacks Debian packages and runs Go in a chroot"
need_cargo
need kubectl kubernetes-client "the test compares its output"
need mmdebstrap mmdebstrap "unpacks packages of Debian's unstable suite"

work=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/apiextensions
suite=$work/suite
if [ ! -e "$work/unpacked" ]; then
    step "unpacking Go, etcd and the source of Kubernetes from Debian's unstable suite (2 minutes, 2.7 GB)"
    rm -rf "$work"
    mkdir -p "$work"
    # A mirror without updates is accepted: packages are checked by signature, not by date.
    mmdebstrap --quiet --variant=extract --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=base-files,golang-go,golang-k8s-apiextensions-apiserver-dev,etcd-server \
        unstable "$suite" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} || fail "cannot unpack the packages: see the messages above"
    touch "$work/unpacked"
fi

source=$ROOT/hack/apiextensions/main.go
if [ ! -x "$work/server" ] || [ "$source" -nt "$work/server" ]; then
    step "building the API server (8 minutes on two cores the first time)"
    mkdir -p "$suite/build/source"
    cp "$source" "$suite/build/source/main.go"
    version=$(zcat "$suite/usr/share/doc/golang-k8s-apiextensions-apiserver-dev/changelog.Debian.gz" | sed -n '1s/.*(0\.\([0-9.]*\).*/v1.\1/p')
    [ -n "$version" ] || fail "cannot find the version in the changelog of the package"
    env -i PATH=/usr/bin HOME=/build GOROOT="/usr/lib/$(cd "$suite/usr/lib" && echo go-1.*)" GOPATH=/usr/share/gocode GO111MODULE=off \
        GOTOOLCHAIN=local GOCACHE=/build/cache GOFLAGS=-p=2 CGO_ENABLED=0 \
        nice "$(PATH=$PATH:/usr/sbin command -v chroot)" "$suite" /usr/bin/go build \
        -ldflags "-X k8s.io/component-base/version.gitVersion=$version" -o /build/server /build/source/main.go
    mv "$suite/build/server" "$work/server"
fi

step "starting etcd and the API server"
run=$(mktemp -d)
children=()
cleanup() {
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
    rm -rf "$run"
}
trap cleanup EXIT
# free_port: prints an unused port on loopback.
free_port() {
    local port
    while port=$((RANDOM % 20000 + 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}
client=http://127.0.0.1:$(free_port) peer=http://127.0.0.1:$(free_port) port=$(free_port)
"$suite/usr/bin/etcd" --data-dir "$run/etcd" --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    --unsafe-no-fsync >"$run/etcd.log" 2>&1 &
children+=($!)
"$work/server" -port "$port" -etcd "$client" -cert-dir "$run" >"$run/server.log" 2>&1 &
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
step "Kubernetes $(kubectl --kubeconfig "$run/kubeconfig" get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p') is ready"

if [ "${1:-}" = --keep ]; then
    step "running until Ctrl-C; try: kubectl --kubeconfig $run/kubeconfig get crd"
    trap 'exit 0' INT TERM
    wait "${children[1]}"
fi

step "comparing (1 minute)"
RUST_BACKTRACE=0 DEVCLUSTER_REAL_KUBECONFIG=$run/kubeconfig cargo test -p devcluster --test real --quiet -- --ignored --nocapture
step "no new differences"

#!/usr/bin/env bash
# Holds hack/devcluster, and with it our CRDs, against the real thing: the CRD API server of Kubernetes (apiextensions-apiserver),
# built from the Debian packages of its source, with etcd behind it, on loopback.
#
#   sudo ./hack/test-apiextensions.sh            builds what is missing, runs, cleans up
#   sudo ./hack/test-apiextensions.sh --keep     leaves it running until Ctrl-C, for kubectl
#
# Both servers get the same requests, and kubectl prints the same of both: every CRD, every refused case of cloud/tests/refused, every
# sample and example, and two hundred others; hack/devcluster/tests/real says which, and which differences are known. The packages come from Debian's unstable
# suite, which is why hack/test.sh does not call this: the version of Kubernetes is the one that the suite has today.
#
# Needs root (for mmdebstrap and chroot), a Debian host and a network. The first time takes about 10 minutes and 4.5 GB in
# target/apiextensions, which may be deleted; later 1 minute. What is built is not in the way of the host: nothing is installed
# but mmdebstrap.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -h|--help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    ""|--keep) ;;
    *) fail "unknown option $1 (see ./hack/test-apiextensions.sh --help)" ;;
esac
[ "$(id -u)" = 0 ] || fail "run it as root: it unpacks Debian packages and runs Go in a chroot"
need_cargo
need kubectl kubernetes-client "the test compares what it prints"
need mmdebstrap mmdebstrap "to unpack packages of Debian's unstable suite"

work=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/apiextensions
suite=$work/suite
if [ ! -e "$work/unpacked" ]; then
    say "unpacking Go, etcd and the source of Kubernetes from Debian's unstable suite (2 minutes, 2.7 GB)"
    rm -rf "$work"
    mkdir -p "$work"
    # A mirror that stands still serves as well: packages are checked by signature, whatever their date.
    mmdebstrap --quiet --variant=extract --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=base-files,golang-go,golang-k8s-apiextensions-apiserver-dev,etcd-server \
        unstable "$suite" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} || fail "the packages could not be unpacked: see above"
    touch "$work/unpacked"
fi

source=$ROOT/hack/apiextensions/main.go
if [ ! -x "$work/server" ] || [ "$source" -nt "$work/server" ]; then
    say "building the API server (8 minutes on two cores the first time)"
    mkdir -p "$suite/build/source"
    cp "$source" "$suite/build/source/main.go"
    version=$(zcat "$suite/usr/share/doc/golang-k8s-apiextensions-apiserver-dev/changelog.Debian.gz" | sed -n '1s/.*(0\.\([0-9.]*\).*/v1.\1/p')
    [ -n "$version" ] || fail "the package does not say its version"
    env -i PATH=/usr/bin HOME=/build GOROOT="/usr/lib/$(cd "$suite/usr/lib" && echo go-1.*)" GOPATH=/usr/share/gocode GO111MODULE=off \
        GOTOOLCHAIN=local GOCACHE=/build/cache GOFLAGS=-p=2 CGO_ENABLED=0 \
        nice "$(PATH=$PATH:/usr/sbin command -v chroot)" "$suite" /usr/bin/go build \
        -ldflags "-X k8s.io/component-base/version.gitVersion=$version" -o /build/server /build/source/main.go
    mv "$suite/build/server" "$work/server"
fi

say "starting etcd and the API server"
run=$(mktemp -d)
children=()
cleanup() {
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
    rm -rf "$run"
}
trap cleanup EXIT
# free_port: a port on loopback that nobody listens on.
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
# It lets everybody in; kubectl asks for a name unless there is a token.
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
say "Kubernetes $(kubectl --kubeconfig "$run/kubeconfig" get --raw /version | sed -n 's/.*"gitVersion": *"\([^"]*\)".*/\1/p') answers"

if [ "${1:-}" = --keep ]; then
    say "until Ctrl-C: kubectl --kubeconfig $run/kubeconfig get crd"
    trap 'exit 0' INT TERM
    wait "${children[1]}"
fi

say "comparing (a minute)"
RUST_BACKTRACE=0 DEVCLUSTER_REAL_KUBECONFIG=$run/kubeconfig cargo test -p devcluster --test real --quiet -- --ignored --nocapture
say "the same"

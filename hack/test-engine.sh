#!/usr/bin/env bash
# Runs the tests that need a container engine on a newer Docker Engine than that of this machine: the one of another suite
# of Debian, with its containerd and runc. The tests are those of hack/test-podman.sh. Not part of hack/test.sh, because it
# takes minutes more.
#
#   sudo ./hack/test-engine.sh           all of them
#   sudo ./hack/test-engine.sh NAME      only the tests whose name contains NAME
#
# The packages are unpacked into target/engine (250 MB, the first time 1 minute and a network; may be deleted) and not
# installed. Tests and engine run in a network namespace of their own with only loopback and the engine's bridges, so that
# its rules of iptables are not those of this machine. The engine stores everything in a temporary directory, which is
# removed at the end; other engines, images and containers on this machine are not touched. ENGINE_SUITE=sid takes another
# suite than trixie.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac

[ "$(id -u)" = 0 ] || fail "run it as root: it starts a Docker engine"
need_container_tests
need mmdebstrap mmdebstrap "unpacks packages of another suite of Debian"
need ip iproute2 "the engine has a network of its own"

name=${ENGINE_SUITE:-trixie}
suite=$(target_dir)/engine/$name
if [ ! -e "$suite/unpacked" ]; then
    step "unpacking docker.io, containerd and runc of Debian's suite $name (1 minute, 250 MB)"
    rm -rf "$suite"
    mkdir -p "$(dirname "$suite")"
    # A mirror without updates is accepted: packages are checked by signature, not by date.
    mmdebstrap --quiet --variant=extract --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=base-files,docker.io,containerd,runc,tini,iptables \
        "$name" "$suite" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} || fail "cannot unpack the packages: see the messages above"
    # Without the alternatives that an installation sets.
    for command in iptables ip6tables iptables-save iptables-restore ip6tables-save ip6tables-restore; do
        ln -sf xtables-nft-multi "$suite/usr/sbin/$command"
    done
    touch "$suite/unpacked"
fi

dir=$(mktemp -d /tmp/neptune-engine.XXXXXX)
engine= network=$(basename "$dir")
# What runs in the network of the engine.
inside=(nsenter --net="/run/netns/$network")

clean_up() {
    if [ -n "$engine" ]; then
        docker ps --all --quiet | xargs --no-run-if-empty docker rm --force >/dev/null 2>&1 || true
        # It ends its containerd.
        kill "$engine" 2>/dev/null && wait "$engine" || true
    fi
    ip netns delete "$network" 2>/dev/null || true
    rm -rf --one-file-system "$dir"
}
trap clean_up EXIT

ip netns add "$network"
"${inside[@]}" ip link set lo up
# Not the settings of this machine's engine. Tests write CDI specs.
mkdir "$dir/cdi"
export NEPTUNE_TEST_CDI_DIR=$dir/cdi
echo '{"features": {"cdi": true}, "cdi-spec-dirs": ["'"$dir/cdi"'"]}' >"$dir/engine.json"

export DOCKER_HOST=unix://$dir/docker.sock NEPTUNE_DOCKER_HOST=unix://$dir/docker.sock
# All programs and libraries of the engine are those of the suite. Everything else is this machine's, because tests mount
# its files into containers. Mounts of the engine end with its namespace.
# shellcheck disable=SC2016  # $0 and $@ are of the inner shell
"${inside[@]}" unshare --mount --propagation slave sh -c 'mount --bind "$0/usr" /usr && exec "$@"' "$suite" \
    dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$dir/run" --pidfile "$dir/pid" \
    --config-file "$dir/engine.json" --bip 10.231.0.1/16 --default-address-pool base=10.232.0.0/16,size=24 \
    --cgroup-parent neptune-engine >"$dir/log" 2>&1 &
engine=$!
for _ in $(seq 300); do
    docker version >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.1
done
version=$(docker version --format '{{range .Server.Components}}{{.Name}} {{.Version}}, {{end}}') ||
    fail "the engine did not start: $(tail -5 "$dir/log")"
step "running ${version%, }"
# By its route to this address of RFC 5737 a test finds the address of this machine for containers.
"${inside[@]}" ip route add 192.0.2.0/24 dev docker0

step "build"
cargo build --workspace --quiet

container_tests "${1:-}"
step "all passed on ${version%, }"

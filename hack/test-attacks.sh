#!/usr/bin/env bash
# Attacks the servers with clients that they do not know, 30 seconds with each attack, and prints what another client
# notices: requests lost, and the 99th percentile of their times without the attack and beside it. Fails if a request is
# lost, or if the percentile is above twice that without the attack and above 100 ms. hack/test.sh does the same for half a
# second each, without the bound of times.
#
#   ./hack/test-attacks.sh
#
# As root, 1,500 silent connections come from another address, too: of a network namespace. Takes about 33 minutes, and the
# build. The test of the agent needs Docker and mosquitto. The attackers, the servers and the client share the cores of this
# machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case "${1:-}" in -h|--help) usage "$0"; exit 0 ;; esac
need_cargo
need_docker
need mosquitto mosquitto "the broker of the agent's test"
need busybox busybox-static "the image of the agent's test"
step "building (the first time takes some minutes)"
packages=(-p neptune-cloud -p neptune-cloud-fleet -p neptune-aggregator -p neptune-gateway)
packages+=(-p neptune-share -p neptune-edge -p neptune-edge-broker)
cargo test --quiet --no-run "${packages[@]}"

# elsewhere: a network namespace whose connections to 10.213.77.1 reach the loopback of this machine.
elsewhere() {
    local name=neptune-attacks link=neptune-att
    trap 'ip netns delete neptune-attacks; iptables -t nat -D PREROUTING -i neptune-att -p tcp -j DNAT --to 127.0.0.1' EXIT
    ip netns add "$name"
    ip link add "$link" type veth peer name eth0 netns "$name"
    ip address add 10.213.77.1/30 dev "$link"
    ip link set "$link" up
    ip -n "$name" address add 10.213.77.2/30 dev eth0
    ip -n "$name" link set eth0 up
    sysctl -qw "net.ipv4.conf.$link.route_localnet=1"
    iptables -t nat -A PREROUTING -i "$link" -p tcp -j DNAT --to 127.0.0.1
    export NEPTUNE_ATTACKS_FROM=$name,10.213.77.1
}
if [ "$(id -u)" = 0 ]; then
    need ip iproute2 "attackers of another address"
    need iptables iptables "attackers of another address"
    elsewhere
else
    step "no attackers of another address: root makes a network namespace for them"
fi
step "attacking"
export NEPTUNE_ATTACKS=full
# One test at a time; each attacks in turn.
cargo test --quiet --no-fail-fast "${packages[@]}" attackers_delay -- --nocapture --test-threads=1

#!/usr/bin/env bash
# What the Pods of the chart run, as processes of a sandbox of hack/test-docs.sh: the controller, the join server, and a
# mosquitto with the shipped configuration and the files of its sidecar. Ends when all of them are ready.
set -euo pipefail

cloud=$BIN/neptune-cloud
wait_for() {
    for _ in $(seq 300); do
        ! "${@:2}" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "error: $1 is not ready" >&2
    tail -n 20 "$BOX"/*.log >&2
    exit 1
}
start() {
    local name=$1
    shift
    "$@" >>"$BOX/$name.log" 2>&1 </dev/null &
    echo $! >>"$BOX/installation"
}

mkdir -p "$BOX/broker"
start controller "$cloud" run --listen "$ADDRESS:8080" --ca-secret neptune-ca --mqtt-url "mqtts://$ADDRESS:8886" \
    --broker-address "$ADDRESS"
# mosquitto is one of several on this machine: the sidecar sends its signal by name.
name=docs-$(basename "$BOX")
name=${name:0:15}
ln -sf "$(PATH=$PATH:/usr/sbin command -v mosquitto)" "$BOX/$name"
start broker-files "$cloud" broker-files --directory "$BOX/broker" --process "$name"
wait_for "the sidecar of the broker" "$cloud" broker-files --check --directory "$BOX/broker"
sed "s|/mosquitto/tls/|$BOX/broker/|; s|/mosquitto/config/|$ROOT/build/acl/|; s|^listener 8885|listener 30885 $ADDRESS|
    s|^listener 8886|listener 8886 $ADDRESS|; 1i user root" "$ROOT/build/acl/mosquitto.conf" >"$BOX/mosquitto.conf"
start mosquitto "$BOX/$name" -c "$BOX/mosquitto.conf"
start join-server "$cloud" join-server --listen "$ADDRESS:30884" --broker-port 30885
wait_for "the join server" grep --quiet 'join server started' "$BOX/join-server.log"
wait_for "the controller" curl --fail --silent "http://$ADDRESS:8080/readyz"

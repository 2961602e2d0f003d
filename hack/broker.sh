#!/usr/bin/env bash
# Runs one MQTT broker in the foreground, on a loopback port, without authentication, with its data in the given
# directory. The tests start it instead of mosquitto when hack/test-brokers.sh runs them.
#
#   ./hack/broker.sh nats|rabbitmq PORT DIRECTORY
set -euo pipefail
kind=$1 port=$2 dir=$3
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p "$dir"

case $kind in
    nats)
        # JetStream stores retained messages and sessions, and requires a server name. NATS's own protocol is not used.
        cat >"$dir/nats.conf" <<CONF
server_name: neptune
listen: 127.0.0.1:-1
jetstream { store_dir: "$dir" }
mqtt { listen: "127.0.0.1:$port" }
CONF
        exec nats-server --config "$dir/nats.conf"
        ;;
    rabbitmq)
        program=$(echo /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server)
        # The ports of Erlang's node registry and of the node: neither the machine's default nor another test's, whose
        # ports are from 30000 to 32767.
        export ERL_EPMD_PORT=$((port - 20000)) ERL_EPMD_ADDRESS=127.0.0.1
        printf '[rabbitmq_mqtt].\n' >"$dir/plugins"
        cat >"$dir/rabbitmq.conf" <<CONF
listeners.tcp = none
mqtt.listeners.tcp.1 = 127.0.0.1:$port
mqtt.allow_anonymous = true
log.console = true
log.file = false
CONF
        # Erlang would start this daemon itself and leave it running. As our child it exits with us.
        setpriv --pdeathsig KILL epmd &
        export HOME=$dir RABBITMQ_NODENAME="neptune-$port@localhost" RABBITMQ_DIST_PORT=$((port - 17000)) \
            RABBITMQ_MNESIA_BASE="$dir/data" RABBITMQ_LOG_BASE="$dir" RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf" \
            RABBITMQ_ENABLED_PLUGINS_FILE="$dir/plugins" RABBITMQ_GENERATED_CONFIG_DIR="$dir" RABBITMQ_CONF_ENV_FILE=/dev/null \
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-start_epmd false' RUNNING_UNDER_SYSTEMD=1
        exec "$program"
        ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

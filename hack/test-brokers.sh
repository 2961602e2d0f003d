#!/usr/bin/env bash
# Runs the tests that depend on the broker with brokers other than mosquitto: the tests of common/link, and the end-to-end
# tests of counting, changes, deletions, kills and offline nodes. Each test starts its own broker (rumqttd as the built
# fleet-broker, the others by hack/broker.sh). Prints a row per broker, with what is known to fail. docs/kubeedge.md lists
# the results. Not part of hack/test.sh: it installs two more servers and takes minutes.
#
#   ./hack/test-brokers.sh [nats|rabbitmq|rumqttd]...
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- nats rabbitmq rumqttd

need_cargo
need_docker
need kubectl kubernetes-client "the tests use the API as a user does"
need mosquitto mosquitto "some tests of common/link use it in any case"
need_nextest
for kind in "$@"; do
    case $kind in
        nats) need nats-server nats-server "the broker under test" ;;
        rabbitmq)
            need rabbitmq-server rabbitmq-server "the broker under test"
            need setpriv util-linux "terminates what Erlang starts" ;;
        rumqttd) ;;
        *) fail "unknown broker $kind: expected nats, rabbitmq or rumqttd" ;;
    esac
done

build_tests
./hack/build-digits-image.sh

# Tests that are known to fail, with the reason. A test that passes again must be removed from the list. Tests that fail
# only sometimes are not run.
# RabbitMQ delivers retained messages only to subscriptions without wildcards: a client that was not subscribed when a
# node died does not receive its last will later.
known_rabbitmq='offline::dead_node_is_offline_also_for_the_next_controller
delivery::restarted_broker_gets_unacknowledged_messages
lifecycle::resubscription_repeats_only_retained_messages'
# rumqttd sends no retained messages when a client subscribes again.
known_rumqttd='lifecycle::resubscription_repeats_only_retained_messages'
# It sends at most 100 of 500 retained messages to a client that subscribes after they were published.
sometimes_rumqttd='delivery::restarted_broker_gets_unacknowledged_messages'

link='package(neptune-link) & test(/^(delivery|lifecycle)::/)'
# The tests of the module rumqttd use it in any case, and run in ./hack/test.sh.
end_to_end='package(neptune-e2e) & test(/^(offline|power|failures)::/) & !test(/::(eventbus|rumqttd)::/)'
# Of the whole workspace, so that cargo selects the features of build_tests and compiles nothing again.
nextest=(cargo nextest run --workspace --test link --test e2e --final-status-level fail)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed='' rows=()
for kind in "$@"; do
    step "$kind"
    export NEPTUNE_TEST_BROKER=$kind
    known=known_$kind known=${!known:-} sometimes=sometimes_$kind sometimes=${!sometimes:-}
    tests="($link) | ($end_to_end)"
    for test in $known $sometimes; do tests="($tests) - test(=$test)"; done
    "${nextest[@]}" -j 2 --no-fail-fast -E "$tests" 2>&1 | tee "$log" || failed="$failed $kind"
    for test in $known; do
        step "$kind: known to fail: $test"
        ! "${nextest[@]}" --retries 0 --no-tests=pass -E "test(=$test)" >/dev/null 2>&1 ||
            fail "$test passes, or no longer exists: remove it from $0 and docs/kubeedge.md"
    done
    # "Summary [ 1.234s] 16 tests run: 16 passed (1 flaky), 3 skipped"
    read -r run passed < <(sed -n 's/.* Summary \[.*\] *\([0-9]*\) tests run: \([0-9]*\) passed.*/\1 \2/p' "$log")
    others=$(wc -w <<<"$known $sometimes")
    rows+=("$(printf '%-10s %s of %s passed' "$kind" "${passed:-0}" $((${run:-0} + others)))")
    for test in $known; do rows+=("           fails: $test"); done
    for test in $sometimes; do rows+=("           fails sometimes: $test"); done
done
step "done"
printf '%s\n' "${rows[@]}"
[ -z "$failed" ] || fail "failed:$failed"
step "all as expected"

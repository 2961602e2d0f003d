#!/usr/bin/env bash
# Runs the tests that depend on the broker with brokers other than mosquitto: the tests of common/link, and the end-to-end
# tests of counting, changes, deletions, kills and offline nodes. Each test starts its own broker (hack/broker.sh).
# docs/kubeedge.md lists the results. Not part of hack/test.sh: it installs two more servers and takes minutes.
#
#   ./hack/test-brokers.sh [nats|rabbitmq]...
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- nats rabbitmq

need_cargo
need_docker
need kubectl kubernetes-client "the tests use the API as a user does"
need mosquitto mosquitto "some tests of common/link use it in any case"
cargo nextest --version >/dev/null 2>&1 || fail "cargo-nextest is missing: cargo install cargo-nextest"
for kind in "$@"; do
    case $kind in
        nats) need nats-server nats-server "the broker under test" ;;
        rabbitmq)
            need rabbitmq-server rabbitmq-server "the broker under test"
            need setpriv util-linux "terminates what Erlang starts" ;;
        *) fail "unknown broker $kind: expected nats or rabbitmq" ;;
    esac
done

step "build"
cargo build --workspace --quiet
./hack/build-digits-image.sh

# Tests that are known to fail, with the reason. A test that passes again must be removed from the list.
# RabbitMQ delivers retained messages only to subscriptions without wildcards: a client that was not subscribed when a
# node died does not receive its last will later.
known_rabbitmq='offline::dead_node_is_offline_also_for_the_next_controller
delivery::restarted_broker_gets_unacknowledged_messages
lifecycle::resubscription_repeats_only_retained_messages'

link='package(neptune-link) & test(/^(delivery|lifecycle)::/)'
end_to_end='package(neptune-e2e) & test(/^(offline|power|failures)::/) & !test(/::eventbus::/)'
failed=
for kind in "$@"; do
    step "$kind"
    export NEPTUNE_TEST_BROKER=$kind
    known=known_$kind known=${!known:-}
    tests="($link) | ($end_to_end)"
    for test in $known; do tests="($tests) - test(=$test)"; done
    cargo nextest run -p neptune-link -p neptune-e2e -j 2 --no-fail-fast -E "$tests" || failed="$failed $kind"
    for test in $known; do
        step "$kind: known to fail: $test"
        ! cargo nextest run -p neptune-link -p neptune-e2e --retries 0 --no-tests=pass -E "test(=$test)" >/dev/null 2>&1 ||
            fail "$test passes, or no longer exists: remove it from $0 and docs/kubeedge.md"
    done
done
[ -z "$failed" ] || fail "failed:$failed"
step "all as expected"

#!/usr/bin/env bash
# Tests the repository. Without a level it runs everything that must pass before a change is merged: format, lints,
# documentation, and the tests of all levels.
#
#   ./hack/test.sh                      everything; as root it installs missing tools
#   ./hack/test.sh unit                 pure tests: no Docker, no root, no other programs; under a minute when built
#   ./hack/test.sh integration          one program with real brokers, containers, kubectl and helm
#   ./hack/test.sh e2e                  controller, agents, brokers and containers together
#   ./hack/test.sh lint                 format, lints and documentation only
#   ./hack/test.sh [LEVEL] --filter TEXT    only the tests whose name contains TEXT
#   KUBECONFIG=... ./hack/test.sh       the end-to-end tests use that cluster instead of hack/devcluster
#
# .config/nextest.toml defines which test belongs to which level. Without cargo-nextest, cargo test is used.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

level=all filter=
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        unit|integration|e2e|lint) level=$1; shift ;;
        --filter) [ $# -ge 2 ] || fail "--filter needs a text"; filter=$2; shift 2 ;;
        --filter=*) filter=${1#*=}; shift ;;
        *) fail "unknown argument $1: expected unit, integration, e2e, lint or --filter TEXT (see $0 --help)" ;;
    esac
done

# timed NAME COMMAND...: runs a step, prints how long it took at the end, and remembers whether it failed. Call it as a
# plain command: after "if" or before "||" bash would ignore errors within the step.
timings=() failed=()
timed() {
    local name=$1 begin=$SECONDS status
    shift
    step "$name"
    set +e
    (set -e; "$@")
    status=$?
    set -e
    [ $status = 0 ] || failed+=("$name")
    timings+=("$(printf '%-14s %5d s  %s' "$name" $((SECONDS - begin)) "$([ $status = 0 ] && echo passed || echo FAILED)")")
}

# summary: prints the steps and exits with 1 if one failed.
summary() {
    step "done"
    printf '%s\n' "${timings[@]}"
    [ ${#failed[@]} = 0 ] || fail "failed: ${failed[*]}"
}

# required NAME COMMAND...: a step without which the following ones make no sense.
required() {
    timed "$@"
    case " ${failed[*]} " in *" $1 "*) summary ;; esac
}

# The test binaries of the level unit that exist, by the names in .config/nextest.toml.
unit_binaries() {
    local name
    for name in $(sed -n '/^\[profile.unit\]/,/^$/s/.*binary(\/^(\(.*\))\$\/).*/\1/p' .config/nextest.toml | tr '|' ' '); do
        git ls-files --cached --others "*/tests/$name.rs" "*/tests/$name/main.rs" | grep -q . && echo "$name"
    done
}

# run_tests LEVEL: the tests of a level. What is not built yet is built, and for the level unit nothing else.
run_tests() {
    local targets=(--workspace) arguments=() binary
    if [ "$1" = unit ]; then
        targets+=(--lib --bins)
        for binary in $(unit_binaries); do targets+=(--test "$binary"); done
    fi
    if cargo nextest --version >/dev/null 2>&1; then
        # With a filter a level without any such test is not an error.
        [ -z "$filter" ] || arguments=(--no-tests=pass "$filter")
        cargo nextest run --profile "$1" "${targets[@]}" --no-fail-fast \
            --status-level "${TEST_STATUS_LEVEL:-slow}" --final-status-level slow "${arguments[@]}"
        return
    fi
    # cargo test selects by package and binary only, so that this level repeats some tests of the level unit.
    case $1 in
        integration) targets+=(--exclude neptune-e2e --test '*') ;;
        e2e) targets=(--package neptune-e2e --test '*') ;;
    esac
    cargo test "${targets[@]}" --no-fail-fast --quiet -- ${filter:+"$filter"}
}

format() { cargo fmt --all --check || fail "the format differs: run cargo fmt --all"; }
lints() { cargo clippy --workspace --all-targets --quiet -- -D warnings; }
documentation() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet; }
doc_tests() { cargo test --workspace --doc --quiet; }
# All targets at once: tests and programs then share every crate that they need.
build() { cargo build --workspace --all-targets --quiet; }
images() {
    ./hack/build-digits-image.sh
    ./hack/build-aggregator-image.sh
    ./hack/build-gateway-image.sh
    ./hack/build-model-server-image.sh
    ./hack/build-python-image.sh
    ./hack/build-python-image.sh --numpy
    ./hack/build-python-image.sh --kserve
}

need_tools() {
    need_docker
    need mosquitto mosquitto "the broker of the tests"
    need mosquitto_sub mosquitto-clients "to receive what is published"
    need kubectl kubernetes-client "the tests use the API as a user does"
    need busybox busybox-static "the tests' container image consists of it"
    need systemd-analyze systemd "to verify the unit of the agent"
    need_helm
}

if [ "$level" = unit ]; then
    export NO_INSTALL=1
    need_cargo
    timed unit run_tests unit
    summary
    exit
fi

need_cargo
case $level in integration|e2e|all) need_tools ;; esac
case $level in
    lint|all)
        required format format
        required lints lints
        required documentation documentation ;;
esac
case $level in integration|e2e|all) required build build ;; esac
# From here on, a level that fails does not keep the next one from running.
if [ "$level" = all ]; then
    timed unit run_tests unit
    [ -n "$filter" ] || timed "doc tests" doc_tests
fi
case $level in integration|all) timed integration run_tests integration ;; esac
case $level in
    e2e|all)
        required images images
        timed e2e run_tests e2e ;;
esac
summary
step "all passed"

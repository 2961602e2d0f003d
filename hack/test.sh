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
#   ./hack/test.sh [LEVEL] --plan       prints the steps in their order, and runs none
#   KUBECONFIG=... ./hack/test.sh       the end-to-end tests use that cluster instead of hack/devcluster
#
# .config/nextest.toml defines which test belongs to which level. Without cargo-nextest, cargo test is used.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

level=all filter='' plan=''
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        unit|integration|e2e|lint) level=$1; shift ;;
        --filter) [ $# -ge 2 ] || fail "--filter needs a text"; filter=$2; shift 2 ;;
        --filter=*) filter=${1#*=}; shift ;;
        --plan) plan=1; shift ;;
        *) fail "unknown argument $1: expected unit, integration, e2e, lint, --filter TEXT or --plan (see $0 --help)" ;;
    esac
done

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
lints() { cargo clippy --workspace --all-targets "${QUIET[@]}" -- -D warnings; }
documentation() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps "${QUIET[@]}"; }
doc_tests() { cargo test --workspace --doc --quiet; }
# All targets at once: tests and programs then share every crate that they need.
build() { cargo build --workspace --all-targets "${QUIET[@]}"; }

# The library in Python (edge/python): lints, types, and its tests with both versions of paho-mqtt. The older one has no
# wheel, and is built with the setuptools of the list.
python_library() {
    local folder library=edge/python older status=0
    folder=$(target_dir)/python
    python_environment "$folder/checks" $library/requirements.txt
    older=$folder/$(sha256sum $library/requirements-paho-1.txt | cut -d' ' -f1)
    if [ ! -d "$older" ]; then
        rm -rf "$older.new"
        "$folder/checks/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
            --require-hashes --target "$older.new" -r $library/requirements-paho-1.txt ||
            fail "$library/requirements-paho-1.txt could not be installed: PyPI has to be reachable"
        mv "$older.new" "$older"
    fi
    python_tests "$older" tests/test_worker.py tests/test_server.py >"$folder/paho-1.log" 2>&1 &
    local tests=$!
    local ruff=$folder/checks/bin/ruff options=(--quiet --no-cache --config $library/pyproject.toml)
    local sources=($library examples/camera examples/federated examples/helmet-detection)
    "$ruff" check "${options[@]}" "${sources[@]}"
    "$ruff" format --check "${options[@]}" "${sources[@]}" ||
        fail "the format differs: run ruff format --config $library/pyproject.toml ${sources[*]}"
    "$folder/checks/bin/mypy" --config-file $library/pyproject.toml --cache-dir "$folder/mypy" $library/neptune_worker
    python_tests '' || status=1
    wait "$tests" || status=1
    step "the tests with paho-mqtt 1.6"
    cat "$folder/paho-1.log"
    return $status
}
# python_tests FOLDER [FILE...]: runs tests of the library, with the packages of the folder before those of the environment.
python_tests() {
    local packages=$1 target
    target=$(target_dir)
    shift
    (cd edge/python && PYTHONPATH=$packages NEPTUNE_EDGE=$target/debug/neptune-edge \
        "$target/python/checks/bin/python" -B -m pytest --quiet -p no:cacheprovider "$@")
}

# The images that the tests of a level need, as the scripts that build them. A test of hack/repo-checks compares the lists
# with the tests.
integration_images=(
    hack/build-aggregator-image.sh
    hack/build-gateway-image.sh
    hack/build-python-image.sh
)
e2e_images=(
    "${integration_images[@]}"
    hack/build-digits-image.sh
    hack/build-model-server-image.sh
    "hack/build-python-image.sh --numpy"
    "hack/build-python-image.sh --kserve"
)

# The steps in their order.
case $level in
    unit) steps=(unit) ;;
    lint) steps=(format lints documentation) ;;
    integration) steps=(build python "${integration_images[@]}" integration) ;;
    e2e) steps=(build "${e2e_images[@]}" e2e) ;;
    all) steps=(format lints documentation build unit doc_tests python "${e2e_images[@]}" integration docs e2e) ;;
esac
if [ -n "$plan" ]; then
    printf '%s\n' "${steps[@]}"
    exit
fi

# What the tests need. It is checked before anything is built, so that nothing is missing after minutes.
unit_tools="git|git|tests read the repository's files"
tools="$COMPILER
$BUILDERS
$unit_tools
mosquitto|mosquitto|the broker of the tests
mosquitto_sub|mosquitto-clients|to receive what is published
kubectl|kubernetes-client|the tests use the API as a user does
busybox|busybox-static|the tests' container image consists of it
systemd-analyze|systemd|to verify the unit of the agent
gpg|gpg|tests sign a release
gpgv|gpgv|tests verify it
mkfs.ext4|e2fsprogs|a test fills a disk
faketime|faketime|nodes with the clocks of 1970 and 2040 join"
case $level in
    lint) ;;
    unit)
        export NO_INSTALL=1
        need_all <<<"$COMPILER"$'\n'"$unit_tools" ;;
    *)
        need_docker
        need_all <<<"$tools" ;;
esac
need_cargo
case $level in integration|e2e|all) need_helm ;; esac
for name in "${steps[@]}"; do
    case $name in
        format|lints|documentation|build) required "$name" "$name" ;;
        # From here on, a step that fails does not keep the next one from running.
        doc_tests) [ -n "$filter" ] || timed "doc tests" doc_tests ;;
        python) [ -n "$filter" ] || timed python python_library ;;
        docs) [ -n "$filter" ] || NO_BUILD=1 timed "blocks of the pages" ./hack/test-docs.sh ;;
        unit|integration|e2e) timed "$name" run_tests "$name" ;;
        *)
            read -ra script <<<"$name"
            timed "${name#hack/}" "./${script[0]}" "${script[@]:1}" ;;
    esac
done
summary
step "all passed"

#!/usr/bin/env bash
# Fuzzes the parsers of the gateway, of training and of replication, guided by coverage: what clients, model servers and
# other nodes send is changed until it reaches new code, or until an invariant fails.
#
#   ./hack/fuzz.sh                          all targets, one minute each
#   ./hack/fuzz.sh TARGET [--seconds N]     one of: oip, grpc, sse, tfserving,
#                                           safetensors, npy, npz, upload, manifest
#   ./hack/fuzz.sh --seconds N              all targets, N seconds each
#   ./hack/fuzz.sh TARGET FILE              runs one input again, such as one that was found
#
# Installs cargo-fuzz if it is missing. The first four targets are in edge/gateway/fuzz, the others in common/fuzz. Inputs
# that fail are kept in artifacts of that directory; what reached new code is kept in corpus for the next run. The
# committed inputs are in seeds.
# SANITIZER=address finds errors in unsafe code of dependencies, at a third of the speed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

gateway=(oip grpc sse tfserving) common=(safetensors npy npz upload manifest)
all=("${gateway[@]}" "${common[@]}") targets=() seconds=60 input=
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        --seconds) [ $# -ge 2 ] || fail "--seconds needs a number"; seconds=$2; shift 2 ;;
        --seconds=*) seconds=${1#*=}; shift ;;
        oip|grpc|sse|tfserving|safetensors|npy|npz|upload|manifest) targets+=("$1"); shift ;;
        *)
            [ -f "$1" ] && [ ${#targets[@]} = 1 ] || fail "unknown argument $1: expected ${all[*]}, --seconds N, or a file after one target"
            input=$(realpath "$1"); shift ;;
    esac
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "--seconds $seconds is not a number of seconds"
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

need_cargo
need c++ g++ "to compile libFuzzer"
if ! cargo fuzz --version >/dev/null 2>&1; then
    step "installing cargo-fuzz (takes a minute)"
    cargo install --quiet --locked cargo-fuzz || fail "cargo-fuzz could not be installed: see above"
fi

# The instrumentation needs options of rustc that are not stable. The compiler stays that of rust-toolchain.toml.
export RUSTC_BOOTSTRAP=1
target_dir=$(target_dir)/fuzz

# Sets the directory of a target, and the options of cargo fuzz for it.
select_target() {
    fuzz=edge/gateway/fuzz
    [[ " ${common[*]} " != *" $1 "* ]] || fuzz=common/fuzz
    options=(--fuzz-dir "$fuzz" --target-dir "$target_dir/$(dirname "$fuzz")" --sanitizer "${SANITIZER:-none}")
}

step "building (the first time takes some minutes)"
mkdir -p "$target_dir"
built=
for target in "${targets[@]}"; do
    select_target "$target"
    [ "$fuzz" != "$built" ] || continue
    built=$fuzz
    # The same versions of dependencies as the workspace's. Cargo removes what is not needed.
    cp Cargo.lock "$fuzz/Cargo.lock"
    cargo fuzz build "${options[@]}" 2>"$target_dir.log" || { cat "$target_dir.log" >&2; fail "the targets could not be built"; }
done
if [ -n "$input" ]; then
    exec cargo fuzz run "${options[@]}" "${targets[0]}" "$input"
fi

failed=() lines=()
for target in "${targets[@]}"; do
    select_target "$target"
    step "$target: $seconds s"
    mkdir -p "$fuzz/corpus/$target"
    log=$target_dir/$target.log
    # An input may take 5 s and 512 MB at most: small inputs must not cost much.
    if cargo fuzz run "${options[@]}" "$target" "$fuzz/corpus/$target" "$fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=512 -print_final_stats=1 >"$log" 2>&1; then
        verdict="no findings"
    else
        failed+=("$target")
        verdict=FAILED
        tail -n 40 "$log" >&2
    fi
    # The name, executions, blocks of code that were reached, inputs in the corpus.
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -o ' cov: [0-9]*' "$log" | tail -n 1 | tr -dc 0-9) || true
    lines+=("$(printf '%-11s %10s executions  %6s blocks  %6d inputs  %s' "$target" "${executions:-?}" "${coverage:-?}" "$(find "$fuzz/corpus/$target" -type f | wc -l)" "$verdict")")
done
step "done"
printf '%s\n' "${lines[@]}"
[ ${#failed[@]} = 0 ] || fail "findings in ${failed[*]}: the inputs are in artifacts of edge/gateway/fuzz and common/fuzz; run one again with $0 TARGET FILE"

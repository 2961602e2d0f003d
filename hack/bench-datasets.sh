#!/usr/bin/env bash
# Compares Neptune's sample counters with `wc -l` on 1 GiB of csv and of txt, in the same run and from the page cache.
# Includes a csv with newlines within quotes, where `wc -l` is wrong.
#
#   ./hack/bench-datasets.sh [DIR]        DIR needs 1 GiB of space; default: /dev/shm
set -euo pipefail
. "$(dirname "$0")/lib.sh"

RUNS=7
GIB=$((1024 * 1024 * 1024))
BASE=${1:-/dev/shm}
[ -d "$BASE" ] && [ "$(df --output=avail -B1 "$BASE" | tail -1)" -gt "$GIB" ] || BASE=${TMPDIR:-/tmp}
case ${1:-} in -*) usage "$0"; exit 0 ;; esac
DIR=$(mktemp -d "$BASE/neptune-bench.XXXXXX")
trap 'rm -rf "$DIR"' EXIT

need_cargo
cd "$ROOT"
step "building the counters with optimisation"
cargo build -q --release -p neptune-datasets --example count
COUNT=$(target_dir)/release/examples/count

# fill FILE PROGRAM: writes 1 GiB of lines: a block of 8 MiB that the awk program prints for n = 1, 2, ..., repeated.
fill() {
    awk -v size=$((8 * 1024 * 1024)) "BEGIN { srand(1); for (n = 1; length_so_far < size; n++) { line = $2; length_so_far += length(line) + 1; print line } }" >"$DIR/block"
    for _ in $(seq 128); do cat "$DIR/block"; done >"$1"
    rm "$DIR/block"
}

# seconds COMMAND...: prints how long the command took. Its output is in $DIR/out.
seconds() {
    local begin=$EPOCHREALTIME
    "$@" >"$DIR/out"
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }'
}

# measure NAME FORMAT PROGRAM: prints the best and the median of RUNS. The two run in turns, so that other load on the
# machine affects both.
measure() {
    local name=$1 format=$2 ours=() theirs=() samples lines
    fill "$DIR/data" "$3"
    cat "$DIR/data" >/dev/null
    for _ in $(seq $RUNS); do
        theirs+=("$(seconds wc -l "$DIR/data")"); lines=$(cut -d' ' -f1 "$DIR/out")
        ours+=("$(seconds "$COUNT" "$format" "$DIR/data")"); samples=$(cut -d' ' -f1 "$DIR/out")
    done
    rm "$DIR/data"
    mapfile -t ours < <(printf '%s\n' "${ours[@]}" | sort -n)
    mapfile -t theirs < <(printf '%s\n' "${theirs[@]}" | sort -n)
    awk -v name="$name" -v o="${ours[0]}" -v om="${ours[RUNS / 2]}" -v t="${theirs[0]}" -v tm="${theirs[RUNS / 2]}" \
        -v samples="$samples" -v lines="$lines" 'BEGIN {
        printf "%-28s ours %.3f s (median %.3f), wc -l %.3f s (median %.3f): %.2f times as fast (median %.2f); %d samples, wc -l counts %d%s\n",
            name, o, om, t, tm, t / o, tm / om, samples, lines, samples == lines ? "" : ", which is wrong" }'
}

step "1 GiB each, $RUNS runs in turns, on $(nproc) cores (load $(cut -d" " -f1 /proc/loadavg)): $(wc --version | head -1)"
measure "txt" txt 'n " " int(rand() * 1000000000) " lorem ipsum dolor sit amet consectetur"'
measure "csv" csv 'n "," rand() "," int(rand() * 1000) ",label-" n % 10'
measure "csv, all fields quoted" csv '"\"" n "\",\"" rand() "\",\"label-" n % 10 "\""'
measure "csv, newlines within quotes" csv 'n ",\"first line\nsecond, \"\"quoted\"\" line\"," rand()'

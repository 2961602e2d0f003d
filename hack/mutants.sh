#!/usr/bin/env bash
# Measures what the unit tests of a crate notice: cargo-mutants changes one place of the code at a time, and the crate's
# own tests have to fail. Prints the changes that no test noticed.
#
#   ./hack/mutants.sh PACKAGE                        150 mutants of a package such as neptune-wire, chosen by seed 1
#   ./hack/mutants.sh PACKAGE --seed N --count N     others, or more
#   ./hack/mutants.sh PACKAGE --list                 prints the chosen mutants, and tests none
#
# The choice depends on the code, the seed and the count only, so that a run can be repeated. Installs cargo-mutants if
# it is missing. Works in a copy of the repository; the reports are in target/mutants/PACKAGE/mutants.out.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

package='' seed=1 count=150 list=
while [ $# -gt 0 ]; do
    case $1 in
        -h|--help) usage "$0"; exit 0 ;;
        --seed|--count)
            [ $# -ge 2 ] && [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "$1 needs a number from 1"
            [ "$1" = --seed ] && seed=$2 || count=$2
            shift 2 ;;
        --list) list=1; shift ;;
        -*) fail "unknown argument $1: see $0 --help" ;;
        *) [ -z "$package" ] || fail "one package at a time: $package or $1"; package=$1; shift ;;
    esac
done
[ -n "$package" ] || fail "name a package, such as neptune-wire: see $0 --help"

need_cargo
need_nextest
need_all <<<"python3|python3|to choose the mutants"
if ! cargo mutants --version >/dev/null 2>&1; then
    step "installing cargo-mutants (takes minutes)"
    cargo install --quiet --locked cargo-mutants || fail "cargo-mutants could not be installed: see above"
fi

# Example values of tests are not code of the crate.
mutants() { cargo mutants --package "$package" --exclude '**/fixtures.rs' --exclude '**/testing.rs' "$@"; }

# choose: reads the names of all mutants, and prints the chosen ones. Few have the same name, and are chosen together.
choose() {
    python3 -c '
import random, sys
names = sys.stdin.read().splitlines()
seed, count = map(int, sys.argv[1:])
print(*sorted(random.Random(seed).sample(names, min(count, len(names)))), sep="\n")
' "$seed" "$count"
}
all=$(mutants --list | LC_ALL=C sort -u)
[ -n "$all" ] || fail "$package has no mutants"
names=$(choose <<<"$all")
if [ -n "$list" ]; then
    printf '%s\n' "$names"
    exit
fi

out=$(target_dir)/mutants/$package
# The others count as caught before: --re does not select among mutants that delete a field (cargo-mutants 27.1).
rm -rf "$out/mutants.out"
mkdir -p "$out/mutants.out"
LC_ALL=C comm -23 <(echo "$all") <(LC_ALL=C sort <<<"$names") >"$out/mutants.out/previously_caught.txt"
step "testing $(wc -l <<<"$names") mutants of $package, seed $seed"
# Dependencies are compiled once for all runs of a package, and nothing needs debug information. 2 and 3 are missed
# mutants and timeouts.
set +e
CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_DIR=$out/build mutants --iterate --jobs 1 --test-tool nextest \
    --output "$out" --no-shuffle --colors never -- --tests --profile mutants
status=$?
set -e
case $status in 0|2|3) ;; *) fail "cargo-mutants failed with $status: see above" ;; esac

step "done"
result() { grep -c . "$out/mutants.out/$1.txt" || true; }
caught=$(result caught) missed=$(result missed) timeout=$(result timeout) unviable=$(result unviable)
viable=$((caught + missed + timeout))
printf '%s, seed %s: %s viable, %s caught, %s timed out, %s missed (and %s unviable)\n' \
    "$package" "$seed" "$viable" "$caught" "$timeout" "$missed" "$unviable"
cat "$out/mutants.out/missed.txt"

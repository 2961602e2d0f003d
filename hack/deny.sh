#!/usr/bin/env bash
# Checks the dependencies against deny.toml with cargo-deny: licences, banned and duplicate crates, sources, and the
# RustSec advisories. Not part of hack/test.sh: installing cargo-deny takes minutes, and advisories need a network.
#
#   ./hack/deny.sh              all checks
#   ./hack/deny.sh --offline    without advisories, whose database is downloaded
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

checks=(advisories bans licenses sources)
case ${1:-} in
    "") ;;
    --offline) checks=(bans licenses sources) ;;
    -h|--help) usage "$0"; exit 0 ;;
    *) fail "unknown argument $1 (see $0 --help)" ;;
esac

need_cargo
if ! cargo deny --version >/dev/null 2>&1; then
    step "installing cargo-deny (takes minutes)"
    cargo install --quiet --locked cargo-deny || fail "cargo-deny could not be installed: see above"
fi
step "checking ${checks[*]}"
cargo deny --workspace check --hide-inclusion-graph "${checks[@]}"
step "no findings but the accepted ones in deny.toml"

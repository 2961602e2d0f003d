#!/bin/sh
# Three agents of a site get a model of 200 MB from an origin of 1 MB/s, over each transport: at most 1.15 times one
# transfer, and at most 1.05 times its bytes from the origin. Takes about 8 minutes. Usage:
#   ./hack/test-peers.sh [MEGABYTES]
set -eu
cd "$(dirname "$0")/.."
export NEPTUNE_PEERS_TEST_MB="${1:-200}"
cargo build --workspace --bins
exec cargo test --workspace --test e2e -- --nocapture --test-threads 1 site_downloads_a_model_once

#!/usr/bin/env bash
# Compares joint inference by the gateway (release build) with the way of KubeEdge's Sedna, in one run on this machine:
# speed, share uploaded when the images change, memory, and what happens while the cloud is away for 20 s.
#
#   ./hack/bench-sedna.sh [--rounds 3]        also: ./hack/bench.sh sedna
#
# Sedna's Python library is on no registry (the package "sedna" of PyPI is something else), so hack/sedna/imitation.py
# does what the library does, and the tables call it an imitation. Same models, images, order and machine. What differs:
#
# - The imitation infers in the worker with numpy, as Sedna's examples do with their framework, and its samples are
#   there. The gateway's client sends each sample over HTTP to the gateway, and the gateway to a model server.
# - The imitation's cloud is Python (FastAPI, uvicorn), as in Sedna; one row has the cloud worker of examples/digits.
# - Sedna has no goal: the imitation gets the threshold that uploads 20 % of the clean images, the best one there is.
# - The gateway's comparisons of easy samples (shadowRatio) are off, because Sedna has none.
#
# Takes four minutes after the build. Installs numpy, requests, FastAPI and uvicorn from PyPI into the target directory.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

rounds_option 3 "$@"

need_cargo
environment=$(target_dir)/sedna
python_environment "$environment" hack/sedna/requirements.txt
step "building (the first time takes some minutes)"
cargo build --quiet --release -p neptune-gateway -p three-resources -p digits --bin neptune-gateway --bin model-server \
    --bin digits
programs=$(target_dir)/release
step "measuring"
uname -sr
nproc | sed 's/$/ cores/'
export PYTHONPATH=hack/clients
exec "$environment/bin/python" -B hack/sedna/bench.py "$ROOT" "$programs/neptune-gateway" \
    "$programs/model-server" "$programs/digits" "$rounds"

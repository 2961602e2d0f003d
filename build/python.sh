#!/usr/bin/env bash
# Builds the wheel and the source distribution of the Python library neptune-worker (edge/python).
#
#   ./build/python.sh [OUTPUT_DIR]          default: target/python-dist
#
# Needs Python 3.11 or 3.12 with venv, and PyPI for the build backend, in the version that the tests of the library pin.
# The same commit gives the same bytes.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
out=${1:-$(target_dir)/python-dist}
mkdir -p "$out"
out=$(realpath "$out")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
environment=$(target_dir)/python/checks
python_environment "$environment" edge/python/requirements.txt
(cd edge/python && "$environment/bin/hatchling" build --directory "$out")

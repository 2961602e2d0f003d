#!/usr/bin/env bash
# Packs a program of a release with its licences; the same files give the same archive, byte by byte.
#
#   BINARY=PATH ARCH=amd64 THIRD_PARTY=FILE ./build/archive.sh PROGRAM OUTPUT_DIR
#
# Writes PROGRAM_VERSION_linux_ARCH.tar.gz with the folder PROGRAM-VERSION. THIRD_PARTY has the licences of the linked
# crates. SOURCE_DATE_EPOCH is the time of the files; default: that of the commit.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"

case ${1:-} in
    -h|--help) usage "$0"; exit 0 ;;
esac
[ $# = 2 ] && [ -n "${BINARY:-}" ] && [ -n "${ARCH:-}" ] && [ -n "${THIRD_PARTY:-}" ] ||
    fail "expected BINARY, ARCH, THIRD_PARTY, and the arguments PROGRAM and OUTPUT_DIR (see $0 --help)"
program=$1 version=$(workspace_version)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

folder=$scratch/$program-$version
install -D -m 0755 "$BINARY" "$folder/$program"
install -m 0644 -t "$folder" "$ROOT/LICENSE" "$ROOT/NOTICE"
install -m 0644 "$THIRD_PARTY" "$folder/THIRD-PARTY-LICENSES.txt"
mkdir -p "$2"
pack "$scratch" "$program-$version" >"$2/${program}_${version}_linux_$ARCH.tar.gz"

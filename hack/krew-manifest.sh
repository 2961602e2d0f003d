#!/usr/bin/env bash
# Writes the manifest by which krew installs neptune-cloud as the plugin `kubectl neptune`.
#
#   ./hack/krew-manifest.sh URL DIST      URL: the address at which the files of the release are served
#
# Reads neptune-cloud_VERSION_linux_ARCH.tar.gz of amd64 and arm64 in DIST, and writes neptune.yaml beside them, with their
# SHA-256. Fails if an archive has not the files that the manifest names. docs/release.md has the steps that publish it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

case ${1:-} in
    -h|--help) usage "$0"; exit 0 ;;
esac
[ $# = 2 ] || fail "expected URL and DIST (see $0 --help)"
[[ $1 =~ ^https://[^[:space:]]+$ ]] || fail "$1 is no https URL, which krew needs"
url=${1%/} dist=$2
version=$(workspace_version)
folder=neptune-cloud-$version files=(neptune-cloud LICENSE NOTICE THIRD-PARTY-LICENSES.txt)
manifest=$dist/neptune.yaml

platforms=
for arch in amd64 arm64; do
    archive=neptune-cloud_${version}_linux_$arch.tar.gz
    [ -s "$dist/$archive" ] || fail "$dist has no $archive: build the release first (hack/release.sh)"
    listed=$(tar --list --gzip --file "$dist/$archive")
    for file in "${files[@]}"; do
        grep --quiet --line-regexp --fixed-strings "$folder/$file" <<<"$listed" || fail "$dist/$archive has no $folder/$file"
    done
    platforms+="
    - selector: {matchLabels: {os: linux, arch: $arch}}
      uri: $url/$archive
      sha256: $(sha256sum "$dist/$archive" | cut -d' ' -f1)
      bin: kubectl-neptune
      files:
        - {from: $folder/neptune-cloud, to: kubectl-neptune}
        - {from: $folder/LICENSE, to: .}
        - {from: $folder/NOTICE, to: .}
        - {from: $folder/THIRD-PARTY-LICENSES.txt, to: .}"
done
cat >"$manifest" <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: neptune
spec:
  version: v$version
  homepage: $(sed -n 's/^home: //p' "$ROOT/build/helm/neptune/Chart.yaml")
  shortDescription: Inspect and change joint inference on edge nodes
  description: |
    Shows services, models and nodes of Neptune with their counters and
    reasons, reads logs of workers, restarts them, pauses and undoes rollouts,
    and permits nodes to join. It needs Neptune in the cluster.
  platforms:$platforms
YAML
step "$manifest installs kubectl neptune $version from $url"

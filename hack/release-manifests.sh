#!/usr/bin/env bash
# Packs what installs a release: the Helm chart, and the manifests for kustomize. Both name every image by its digest, so
# that a tag that is moved later changes no installation.
#
#   ./hack/release-manifests.sh IMAGES OUTPUT_DIR
#
# IMAGES is a file with a line "NAME REPOSITORY@sha256:DIGEST" for each of neptune-cloud, neptune-edge and
# eclipse-mosquitto. Writes neptune-VERSION.tgz, neptune-manifests_VERSION.tar.gz and images.txt. Fails if an image has no
# digest. The same commit and images give the same bytes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
[ $# = 2 ] || fail "expected IMAGES and OUTPUT_DIR (see $0 --help)"
images=$(realpath "$1")
mkdir -p "$2"
output=$(realpath "$2")
cd "$ROOT"
version=$(workspace_version)
need_helm
need kubectl kubernetes-client "to render the manifests"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

names=(neptune-cloud neptune-edge eclipse-mosquitto)
# reference NAME: the repository and the digest of an image, in two words.
reference() {
    local found
    found=$(awk -v name="$1" '$1 == name {print $2}' "$images")
    [[ $found =~ ^[^@[:space:]]+@sha256:[0-9a-f]{64}$ ]] ||
        fail "$images has no line \"$1 REPOSITORY@sha256:DIGEST\": push the image, and write its digest there"
    echo "${found%@*} ${found#*@}"
}
unknown=$(awk '!/^#/ && NF {print $1}' "$images" | grep -vxF "$(printf '%s\n' "${names[@]}")" || true)
[ -z "$unknown" ] || fail "$images names other images: $unknown"

# The links of the chart and the overlays become files.
chart=$scratch/neptune manifests=$scratch/neptune-manifests-$version
cp -rL build/helm/neptune "$chart"
mkdir "$manifests"
cp -rL build/deploy build/acl crds "$manifests"
for name in "${names[@]}"; do
    read -r repository digest < <(reference "$name") || exit 1
    grep -q "image: {repository: $name, tag: " "$chart/values.yaml" || fail "build/helm/neptune/values.yaml has no image $name"
    sed -i "s|image: {repository: $name, tag: [^}]*}|image: {repository: $repository, tag: \"$digest\"}|" "$chart/values.yaml"
    for file in "$manifests"/deploy/*/kustomization.yaml; do
        sed -i "/^images:/,/^[^ ]/{/^  - name: $name\$/{n;s|.*|    newName: $repository\n    digest: $digest|}}" "$file"
    done
done

# What https://artifacthub.io shows: the images, and an example of the CRDs as a list.
{
    echo '  artifacthub.io/images: |'
    for name in "${names[@]}"; do
        read -r repository digest < <(reference "$name")
        printf '    - name: %s\n      image: %s@%s\n' "$name" "$repository" "$digest"
    done
    echo '  artifacthub.io/crdsExamples: |'
    awk '/^#/ {next} /^---$/ {first = 1; next} {print (first || !any ? "    - " : "      ") $0; first = 0; any = 1}' \
        examples/llm/assistant.yaml
} >>"$chart/Chart.yaml"

# by_digest WHAT: the manifests on the standard input name images, and all of them by digest. The images of model servers
# in the ConfigMap neptune-frameworks are examples, which users replace.
by_digest() {
    local list without
    list=$(awk 'BEGIN {RS = "\n---\n"} !/(^|\n)kind: ConfigMap(\n|$)/' |
        awk '/^ *(- )?image: / || variable {print $NF} {variable = /name: NEPTUNE_[A-Z]*_IMAGE$/}' | sort -u)
    [ -n "$list" ] || fail "$1 names no images"
    without=$(grep -vE '@sha256:[0-9a-f]{64}"?$' <<<"$list" || true)
    [ -z "$without" ] || fail "$1 names images without a digest: $without"
}
for transport in mqtt eventbus; do
    "$(helm_command)" template neptune "$chart" -n neptune-system --set "transport=$transport" | by_digest "the chart ($transport)"
done
for overlay in mqtt kubeedge; do
    kubectl kustomize "$manifests/deploy/$overlay" | by_digest "build/deploy/$overlay"
done

"$(helm_command)" package "$chart" --destination "$scratch" >/dev/null
# Helm writes the time into its archive.
tar --extract --gzip --touch --file "$scratch/neptune-$version.tgz" --one-top-level="$scratch/packed"
pack "$scratch/packed" neptune >"$output/neptune-$version.tgz"
pack "$scratch" "$(basename "$manifests")" >"$output/neptune-manifests_$version.tar.gz"
for name in "${names[@]}"; do
    read -r repository digest < <(reference "$name")
    echo "$name $repository@$digest"
done >"$output/images.txt"
step "chart and manifests of $version name ${#names[@]} images by digest"

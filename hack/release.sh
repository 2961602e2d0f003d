#!/usr/bin/env bash
# Builds everything that a release consists of into dist/: for amd64 and arm64 the programs, both images and the Debian
# package, and the Helm chart, the CRDs, bills of materials, third-party licences, release notes and checksums. Starts
# the programs on Debian 11. docs/release.md has the steps before and after. Publishes nothing.
#
#   ./hack/release.sh             checks the release, then builds it
#   ./hack/release.sh --dry-run   only checks, and prints what would be built
#   ./hack/release.sh --unsigned  without a key: hack/sign-release.sh signs the files on the machine that has it
#   IMAGES=FILE ...               the digests of the pushed images (hack/release-manifests.sh); a release needs them
#   RELEASE_KEY=KEY ...           the secret OpenPGP key that signs (hack/sign-release.sh); needed without --unsigned
#   RELEASE_URL=URL ...           where the files will be served, for the manifest of krew
#
# Needs root and Debian (for build/images.sh), Docker, python3, zig and helm, which it installs if they are missing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

dry_run='' unsigned=''
for argument in "$@"; do
    case $argument in
        --dry-run) dry_run=1 ;;
        --unsigned) unsigned=1 ;;
        -h|--help) usage "$0"; exit 0 ;;
        *) fail "unknown argument $argument (see $0 --help)" ;;
    esac
done
[ -z "$unsigned" ] || [ -z "${RELEASE_KEY:-}" ] || fail "RELEASE_KEY and --unsigned exclude each other"

need_cargo
need python3 python3 "to write the bills of materials"
version=$(workspace_version)
tag=v$version
architectures=(amd64 arm64)
dist=$ROOT/dist

# --- Checks: all problems are printed before the script fails.
problems=()
problem() { problems+=("$*"); printf '  not ready: %s\n' "$*"; }

step "checking release $version"
[ -z "$(git status --porcelain)" ] || problem "the work tree has changes: commit them (git status)"
[ "$(git rev-parse --quiet --verify "refs/tags/$tag^{commit}" || true)" = "$(git rev-parse HEAD)" ] ||
    problem "HEAD has no tag $tag: git tag --annotate $tag"
grep -q "^## \[$version\] - [0-9]\{4\}-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md ||
    problem "CHANGELOG.md has no section \"## [$version] - YYYY-MM-DD\""
for field in version appVersion; do
    [ "$(sed -n "s/^$field: //p" build/helm/neptune/Chart.yaml)" = "$version" ] ||
        problem "build/helm/neptune/Chart.yaml: $field is not $version"
done
grep -q "description: .*Neptune $version" build/helm/neptune/Chart.yaml ||
    problem "build/helm/neptune/Chart.yaml: artifacthub.io/changes has no entry with \"Neptune $version\""
for overlay in base kubeedge mqtt; do
    [ "$(grep -A1 'name: neptune-' "build/deploy/$overlay/kustomization.yaml" | grep -c "newTag: $version\$")" = 2 ] ||
        problem "build/deploy/$overlay/kustomization.yaml: newTag of neptune-cloud and neptune-edge is not $version"
done
[ "$(sed -n 's/^__version__ = "\(.*\)"/\1/p' edge/python/neptune_worker/__init__.py)" = "$version" ] ||
    problem "edge/python/neptune_worker/__init__.py: __version__ is not $version"
[ "$(sed -n '/^info:/,/^[^ ]*:/s/^  version: //p' docs/asyncapi.yaml)" = "$version" ] ||
    problem "docs/asyncapi.yaml: info.version is not $version"
[ -s "${IMAGES:-}" ] || problem "IMAGES does not name a file with the digests of the pushed images (docs/release.md)"
[[ ${RELEASE_URL:-} == https://* ]] || problem "RELEASE_URL is not the https address at which the files will be served"
if [ -n "${RELEASE_KEY:-}" ]; then
    gpg --batch --list-secret-keys "$RELEASE_KEY" >/dev/null 2>&1 || problem "gpg has no secret key $RELEASE_KEY (RELEASE_KEY)"
elif [ -z "$unsigned" ]; then
    problem "RELEASE_KEY names no key that signs: set it, or build with --unsigned and sign later (hack/sign-release.sh)"
fi
cargo metadata --format-version 1 --locked --no-deps >/dev/null 2>&1 || problem "Cargo.lock is out of date: cargo build"

# The section of the version in CHANGELOG.md, without its heading.
release_notes() { awk -v heading="## [$version]" 'index($0, "## [") == 1 { inside = index($0, heading) == 1; next } inside' CHANGELOG.md; }

outputs=()
for arch in "${architectures[@]}"; do
    outputs+=(
        "neptune-cloud_${version}_linux_$arch.tar.gz"
        "neptune-edge_${version}_linux_$arch.tar.gz"
        "neptune-gateway_${version}_linux_$arch.tar.gz"
        "neptune-cloud_${version}_linux_$arch.image.tar.gz"
        "neptune-edge_${version}_linux_$arch.image.tar.gz"
        "neptune-edge_${version}_$arch.deb"
        "THIRD-PARTY-LICENSES_$arch.txt"
    )
    for program in "${PROGRAMS[@]}"; do outputs+=("${program}_${version}_linux_$arch.cdx.json"); done
done
outputs+=(
    "neptune-$version.tgz"
    "neptune-manifests_$version.tar.gz"
    images.txt
    "neptune-assistant_$version.yaml"
    neptune.yaml
    artifacthub-repo.yml
    "neptune_worker-$version-py3-none-any.whl"
    "neptune_worker-$version.tar.gz"
    "neptune-crds_$version.yaml"
    RELEASE-NOTES.md
    SHA256SUMS
)
[ -n "$unsigned" ] || outputs+=(SHA256SUMS.asc "neptune-$version.tgz.prov" neptune-release-key.asc)
if [ -n "$dry_run" ]; then
    step "would build into dist/"
    printf '  %s\n' "${outputs[@]}"
    [ ${#problems[@]} = 0 ] || fail "${#problems[@]} problems: see above"
    exit
fi
[ ${#problems[@]} = 0 ] || fail "${#problems[@]} problems: see above"

# --- Build
need_docker
need_helm
rm -rf "$dist"
mkdir -p "$dist"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# In the metric neptune_build_info.
NEPTUNE_REVISION=$(git rev-parse HEAD)
export NEPTUNE_REVISION

./build/programs.sh "${architectures[@]}"
./hack/test-old-systems.sh "${architectures[@]}"

programs=$(target_dir)/release-programs
for arch in "${architectures[@]}"; do
    step "licences and bills of materials for $arch"
    target=$(rust_target "$arch")
    python3 hack/dependencies.py licenses --target "$target" "${PROGRAMS[@]}" >"$dist/THIRD-PARTY-LICENSES_$arch.txt"
    for program in "${PROGRAMS[@]}"; do
        python3 hack/dependencies.py sbom --target "$target" "$program" >"$dist/${program}_${version}_linux_$arch.cdx.json"
    done
    for program in neptune-cloud neptune-edge neptune-gateway; do
        BINARY=$programs/$arch/$program ARCH=$arch THIRD_PARTY=$dist/THIRD-PARTY-LICENSES_$arch.txt ./build/archive.sh "$program" "$dist"
    done

    step "images for $arch"
    ARCH=$arch TAG=$version ./build/images.sh
    for program in neptune-cloud neptune-edge; do
        docker save "$program:$version" | gzip -9n >"$dist/${program}_${version}_linux_$arch.image.tar.gz"
    done

    step "Debian package for $arch"
    BINARY=$programs/$arch/neptune-edge ARCH=$arch ./build/deb.sh "$dist"
done
python3 hack/dependencies.py check "$dist"/*.cdx.json || fail "a bill of materials is malformed: see above"

step "Helm chart and manifests"
./hack/release-manifests.sh "$IMAGES" "$dist"
install -m 0644 build/helm/artifacthub-repo.yml "$dist"
install -m 0644 examples/llm/assistant.yaml "$dist/neptune-assistant_$version.yaml"

step "manifest of krew"
./hack/krew-manifest.sh "$RELEASE_URL" "$dist"

step "Python library"
./build/python.sh "$dist"

step "CRDs and release notes"
for crd in crds/*.yaml; do
    echo "---"
    grep -v '^---$' "$crd"
done >"$dist/neptune-crds_$version.yaml"
release_notes >"$dist/RELEASE-NOTES.md"

step "checksums"
(cd "$dist" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS)
if [ -n "$unsigned" ]; then
    step "the release is unsigned: sign it on the machine with the key, ./hack/sign-release.sh --key KEY dist"
else
    ./hack/sign-release.sh --key "$RELEASE_KEY" "$dist"
fi
for output in "${outputs[@]}"; do
    [ -s "$dist/$output" ] || fail "dist/$output was not built"
done
(cd "$dist" && sha256sum --quiet --check SHA256SUMS && ls -l)
step "release $version is in dist/"

#!/usr/bin/env bash
# Signs a release with one OpenPGP key: the checksums of all files, and the chart, as `helm verify` wants it. The same key
# signs the apt repository (hack/apt-repo.sh).
#
#   ./hack/sign-release.sh --key KEY DIST
#
# KEY is the fingerprint or address of a secret key in the keyring of gpg (GNUPGHOME). It has to be an RSA key: Helm 3 reads
# no other modern kind. DIST has the files of hack/release.sh. Writes SHA256SUMS.asc, neptune-VERSION.tgz.prov and the
# public key, neptune-release-key.asc, and verifies all of them as a user does. Changes no other file.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

key_option "$@"
[ -n "$key" ] && [ ${#arguments[@]} = 1 ] || fail "--key KEY and the folder of the release are needed (see $0 --help)"
need_all <<<"gpg|gpg|to sign
gpgv|gpgv|to verify as a user does"
need_key
need_helm
dist=${arguments[0]} version=$(workspace_version)
chart=neptune-$version.tgz
cd "$dist"
for file in SHA256SUMS "$chart"; do [ -s "$file" ] || fail "$dist has no $file: build the release first (hack/release.sh)"; done
sha256sum --quiet --check SHA256SUMS || fail "$dist is not what SHA256SUMS names: build the release again"
grep --quiet " $chart\$" SHA256SUMS || fail "SHA256SUMS does not name $chart: build the release again"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

sign() { gpg --batch --yes --local-user "$key" --digest-algo SHA512 "$@"; }
sign --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
# What `helm package --sign` writes, which has no access to the agent of gpg: the description of the chart, and its digest.
{
    "$(helm_command)" show chart "$chart"
    printf '\n...\nfiles:\n  %s: sha256:%s\n' "$chart" "$(sha256sum "$chart" | cut -d' ' -f1)"
} >"$scratch/provenance"
sign --clearsign --output "$chart.prov" "$scratch/provenance"
gpg --batch --yes --armor --export --output neptune-release-key.asc "$key"

# With the public key alone.
gpg --batch --dearmor <neptune-release-key.asc >"$scratch/keyring.gpg"
gpgv --quiet --keyring "$scratch/keyring.gpg" SHA256SUMS.asc SHA256SUMS 2>"$scratch/error" ||
    { cat "$scratch/error" >&2; fail "SHA256SUMS.asc does not verify"; }
"$(helm_command)" verify --keyring "$scratch/keyring.gpg" "$chart" >"$scratch/error" 2>&1 ||
    { cat "$scratch/error" >&2; fail "helm does not accept $chart.prov: the key has to be an RSA key"; }
step "$dist is signed by $(gpg --batch --with-colons --list-keys "$key" | awk -F: '$1 == "fpr" {print $10; exit}')"

#!/usr/bin/env bash
# Writes a signed apt repository of Debian packages: static files, which any web server serves.
#
#   ./hack/apt-repo.sh --key KEY OUTPUT_DIR PACKAGE.deb...
#
# KEY is the fingerprint or address of a secret OpenPGP key in the keyring of gpg (GNUPGHOME). OUTPUT_DIR has to be new or
# a repository of this script, whose packages stay: an index without the packages of earlier releases would remove them.
# It gets pool/, dists/stable/ and neptune-archive-keyring.asc, the public key that clients name with signed-by.
# docs/release.md has the steps, and hack/test-apt-repo.sh installs from such a repository.
#
# With SOURCE_DATE_EPOCH set, the same packages give the same index, except for the signature.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

key_option "$@"
[ -n "$key" ] && [ ${#arguments[@]} -ge 2 ] || fail "--key KEY, the folder and at least one package are needed (see $0 --help)"
output=${arguments[0]} packages=("${arguments[@]:1}")
need_all <<<"apt-ftparchive|apt-utils|to write the index
gpg|gpg|to sign it"
need_key
if [ -e "$output" ] && [ -n "$(ls -A "$output")" ] && [ ! -e "$output/dists/stable/InRelease" ]; then
    fail "$output has other files: name a new folder, or one that this script wrote"
fi

pool=pool/main/n/neptune-edge
mkdir -p "$output/$pool"
for package in "${packages[@]}"; do
    name=$(dpkg-deb --field "$package" Package)
    target=$output/$pool/${name}_$(dpkg-deb --field "$package" Version)_$(dpkg-deb --field "$package" Architecture).deb
    # A published version is never changed.
    if [ -e "$target" ] && ! cmp --silent "$package" "$target"; then
        fail "$target has other content: a published version is never changed, release the next one"
    fi
    install -m 0644 "$package" "$target"
done

cd "$output"
mapfile -t architectures < <(for package in "$pool"/*.deb; do dpkg-deb --field "$package" Architecture; done | sort -u)
for arch in "${architectures[@]}"; do
    index=dists/stable/main/binary-$arch
    mkdir -p "$index"
    apt-ftparchive --arch "$arch" packages "$pool" >"$index/Packages"
    gzip -9n --keep --force "$index/Packages"
done
date=$(LC_ALL=C date --utc --date="@${SOURCE_DATE_EPOCH:-$(date +%s)}" '+%a, %d %b %Y %H:%M:%S UTC')
rm -f dists/stable/Release dists/stable/InRelease
apt-ftparchive \
    -o APT::FTPArchive::Release::Origin=Neptune \
    -o APT::FTPArchive::Release::Label=Neptune \
    -o APT::FTPArchive::Release::Suite=stable \
    -o APT::FTPArchive::Release::Codename=stable \
    -o APT::FTPArchive::Release::Architectures="${architectures[*]}" \
    -o APT::FTPArchive::Release::Components=main \
    -o APT::FTPArchive::Release::MD5=false \
    -o APT::FTPArchive::Release::SHA1=false \
    release dists/stable | sed "s/^Date: .*/Date: $date/" >Release
mv Release dists/stable/Release
gpg --batch --yes --local-user "$key" --digest-algo SHA512 --clearsign --output dists/stable/InRelease dists/stable/Release
gpg --batch --yes --local-user "$key" --digest-algo SHA512 --armor --detach-sign --output dists/stable/Release.gpg dists/stable/Release
gpg --batch --yes --armor --export --output neptune-archive-keyring.asc "$key"
step "$output has $(find "$pool" -name '*.deb' | wc -l) packages for ${architectures[*]}"

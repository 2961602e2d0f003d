#!/usr/bin/env bash
# Installs the Debian package of the agent as a user does: from a signed apt repository, in a clean Debian. The agent has
# to start, apt has to refuse the repository after a change and with another key, and a removal leaves the settings.
#
#   sudo ./hack/test-apt-repo.sh [PACKAGE.deb]     default: builds it from target/debug (build_programs of hack/lib.sh)
#
# Needs root, Debian and its archive. The key is made for the test. Takes a minute.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac
[ "$(id -u)" = 0 ] || fail "run it as root: it unpacks and enters a Debian"
need_cargo
need_all <<<"mmdebstrap|mmdebstrap|to unpack a Debian
apt-ftparchive|apt-utils|to write the index
gpg|gpg|to sign it"
scratch=$(mktemp -d)
trap 'gpgconf --kill all >/dev/null 2>&1 || true; rm -rf --one-file-system "$scratch"' EXIT

package=${1:-}
if [ -z "$package" ]; then
    build_programs "${QUIET[@]}" -p neptune-edge --bins
    BINARY=$(target_dir)/debug/neptune-edge ./build/deb.sh "$scratch/deb" >/dev/null
    package=$(echo "$scratch"/deb/*.deb)
fi

export GNUPGHOME=$scratch/gnupg
mkdir -m 0700 "$GNUPGHOME"
for name in releases@example.org another@example.org; do
    gpg --batch --quiet --passphrase '' --quick-generate-key "$name" ed25519 sign never
done
./hack/apt-repo.sh --key releases@example.org "$scratch/repository" "$package"
./hack/apt-repo.sh --key releases@example.org "$scratch/repository" "$package" >/dev/null
gpg --batch --armor --export another@example.org >"$scratch/another.asc"

step "unpacking a clean Debian"
debian_sources >"$scratch/sources"
suite=$(debian_suite "$scratch/sources")
mapfile -t proxy < <(debian_proxy)
root=$scratch/root
# As in a container image: no service is started.
mmdebstrap --quiet --mode=root --variant=apt "${proxy[@]}" --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='Acquire::Languages "none"' "$suite" "$root" - <"$scratch/sources" 2>"$scratch/error" ||
    { cat "$scratch/error" >&2; fail "mmdebstrap failed: see above"; }
cp -r "$scratch/repository" "$root/srv/neptune"
chmod -R a+rX "$root/srv/neptune"
install -m 0644 -D "$scratch/repository/neptune-archive-keyring.asc" "$root/etc/apt/keyrings/neptune.asc"
list=$root/etc/apt/sources.list.d/neptune.list
echo 'deb [signed-by=/etc/apt/keyrings/neptune.asc] file:/srv/neptune stable main' >"$list"
inside() { DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"; }
# Only the repository of the test is read again: Debian's lists are those of mmdebstrap.
update() {
    inside apt-get update -o Dir::Etc::sourcelist=sources.list.d/neptune.list -o Dir::Etc::sourceparts=- \
        -o APT::Get::List-Cleanup=0 --error-on=any "$@"
}
refused() { ! update >"$scratch/update" 2>&1 || fail "apt accepted a repository $1"; echo "  refused $1"; }

step "installing from the repository"
update -qq
inside apt-get install -y -qq --no-install-recommends neptune-edge >"$scratch/install" 2>&1 ||
    { tail -n 20 "$scratch/install" >&2; fail "the package could not be installed"; }
inside neptune-edge --version
inside getent passwd neptune >/dev/null || fail "the package did not create the user neptune"
inside neptune-edge doctor --json --node-name edge0 --mqtt-url mqtt://127.0.0.1:1 >"$scratch/doctor" || true
grep -q '"checks"' "$scratch/doctor" || fail "neptune-edge doctor printed no report"
echo "NEPTUNE_NODE_NAME='edge0'" >"$root/etc/neptune/edge.env"
inside apt-get remove -y -qq neptune-edge >/dev/null 2>&1
[ -e "$root/etc/neptune/edge.env" ] || fail "apt remove deleted the settings"

step "what apt has to refuse"
cp "$scratch/another.asc" "$root/etc/apt/keyrings/neptune.asc"
refused "of another key"
cp "$scratch/repository/neptune-archive-keyring.asc" "$root/etc/apt/keyrings/neptune.asc"
index=$root/srv/neptune/dists/stable/main/binary-$(dpkg --print-architecture)/Packages
sed -i 's/^Description: .*/Description: another text/' "$index"
gzip -9n --keep --force "$index"
rm -f "$root"/var/lib/apt/lists/*neptune*
refused "whose index was changed"
cp -r "$scratch/repository/." "$root/srv/neptune"
sed -i 's/^Suite: .*/Suite: testing/' "$root/srv/neptune/dists/stable/InRelease"
refused "whose signed file was changed"
cp -r "$scratch/repository/." "$root/srv/neptune"
update -qq
printf x >>"$(find "$root/srv/neptune/pool" -name '*.deb')"
! inside apt-get install -y -qq --no-install-recommends neptune-edge >/dev/null 2>&1 || fail "apt installed a changed package"
echo "  refused a changed package"
step "the package installs from a signed repository, and only from that"

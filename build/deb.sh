#!/usr/bin/env bash
# Makes the Debian package of the agent, for hosts that take it outside Kubernetes.
#
#   ./build/deb.sh [OUTPUT_DIR]             from target/release, into OUTPUT_DIR (target/debian unless given)
#   BINARY=path/neptune-edge ARCH=arm64 ./build/deb.sh    a program that was built elsewhere, for another architecture
#
# The package makes the user neptune, and starts nothing: an agent needs settings first (/etc/neptune/edge.env).
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

arch=${ARCH:-$(dpkg --print-architecture)}
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
if [ -z "${BINARY:-}" ]; then
    need_cargo
    target_dir=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    say "building neptune-edge"
    cargo build --quiet --release --locked --package neptune-edge
    BINARY=$target_dir/release/neptune-edge
fi
out=${1:-${target_dir:-target}/debian}
# The same source makes the same package, byte by byte.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
doc=$root/usr/share/doc/neptune-edge
maintainer='The Neptune authors <neptune@example.org>'

put() { install -D -m "$1" "$2" "$root/$3"; }
put 0755 "$BINARY" usr/bin/neptune-edge
put 0644 build/systemd/neptune-edge.service lib/systemd/system/neptune-edge.service
put 0644 build/systemd/neptune-edge.preset lib/systemd/system-preset/90-neptune-edge.preset
# A password stands in it.
put 0600 build/systemd/edge.env etc/neptune/edge.env
put 0644 docs/operations.md usr/share/doc/neptune-edge/operations.md
put 0644 docs/security.md usr/share/doc/neptune-edge/security.md
strip --strip-unneeded --remove-section=.comment "$root/usr/bin/neptune-edge" 2>/dev/null ||
    say "not stripped: this strip does not know $arch"

cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: neptune

Files: *
Copyright: The Neptune authors
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in /usr/share/common-licenses/Apache-2.0.
EOF
cat >"$doc/changelog" <<EOF
neptune-edge ($version) stable; urgency=medium

  * Made from the project's source; its history is the project's.

 -- $maintainer  $(date --utc --date="@$SOURCE_DATE_EPOCH" --rfc-email)
EOF
gzip -9n "$doc/changelog" "$doc/operations.md" "$doc/security.md"
chmod 0644 "$doc"/*

# What the program is linked with; for another architecture, or without dpkg-dev, what every build needs.
depends='libc6 (>= 2.36), libgcc-s1 (>= 4.2)'
if [ "$arch" = "$(dpkg --print-architecture)" ] && has dpkg-shlibdeps; then
    mkdir -p "$scratch/debian"
    printf 'Source: neptune-edge\n\nPackage: neptune-edge\nArchitecture: any\n' >"$scratch/debian/control"
    depends=$(cd "$scratch" && dpkg-shlibdeps -O root/usr/bin/neptune-edge 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
fi

mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<EOF
Package: neptune-edge
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends, adduser
Recommends: docker.io | docker-ce | moby-engine | podman, ca-certificates
Section: net
Priority: optional
Homepage: https://kubeedge.io
Description: agent of a Neptune node for joint inference
 Runs the inference workers of an edge node as containers, counts what they
 infer, and tells the cloud over MQTT. It keeps working with no connection.
 .
 It needs a Docker engine, a broker that both it and the controller reach, and
 settings in /etc/neptune/edge.env. It does not start before it is told to.
EOF
echo /etc/neptune/edge.env >"$root/DEBIAN/conffiles"

cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
# Each step leaves alone what is there already: this runs at every upgrade, too.
set -e
if [ "$1" = configure ]; then
    if ! getent passwd neptune >/dev/null; then
        adduser --quiet --system --group --home /var/lib/neptune --no-create-home --gecos 'Neptune agent' neptune
    fi
    # Docker's own package takes a group of this name as it is.
    getent group docker >/dev/null || addgroup --quiet --system docker
    id -nG neptune | grep -qw docker || adduser --quiet neptune docker
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        if [ -n "$2" ]; then
            # Only one that runs: the workers go on meanwhile.
            deb-systemd-invoke try-restart neptune-edge.service >/dev/null || true
        fi
    fi
    if [ -z "$2" ]; then
        echo 'neptune-edge: set NEPTUNE_NODE_NAME and NEPTUNE_MQTT_URL in /etc/neptune/edge.env, then: systemctl enable --now neptune-edge'
    fi
fi
EOF
cat >"$root/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop neptune-edge.service >/dev/null || true
fi
EOF
cat >"$root/DEBIAN/postrm" <<'EOF'
#!/bin/sh
# The user stays, as the owner of files that may be elsewhere.
set -e
if [ "$1" = remove ] || [ "$1" = purge ]; then
    if [ -d /run/systemd/system ]; then
        systemctl --quiet --no-reload disable neptune-edge.service >/dev/null 2>&1 || true
        systemctl --system daemon-reload >/dev/null || true
    fi
fi
if [ "$1" = purge ]; then
    rm -rf /var/lib/neptune
    if [ -d /etc/neptune ]; then rmdir --ignore-fail-on-non-empty /etc/neptune; fi
fi
EOF
chmod 0755 "$root"/DEBIAN/postinst "$root"/DEBIAN/prerm "$root"/DEBIAN/postrm
find "$root" -type d -exec chmod 0755 {} +
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$out"
package=$out/neptune-edge_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
say "$package: $(stat -c %s "$package" | awk '{printf "%.1f MB", $1 / 1e6}')"

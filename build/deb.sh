#!/usr/bin/env bash
# Builds the Debian package of the agent, for hosts that run it outside Kubernetes.
#
#   ./build/deb.sh [OUTPUT_DIR]             from target/release, into OUTPUT_DIR (default: target/debian)
#   BINARY=path/neptune-edge ARCH=arm64 ./build/deb.sh    packages a program that was built elsewhere
#
# The package creates the user neptune and does not start the agent, which needs settings first: neptune-edge join writes
# /etc/neptune/edge.env. That is no configuration file of dpkg, which would ask about it at each upgrade.
set -euo pipefail
. "$(dirname "$0")/../hack/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac

arch=${ARCH:-$(dpkg --print-architecture)}
version=$(workspace_version)
need_cargo
need python3 python3 "to list the licences of the dependencies"
if [ -z "${BINARY:-}" ]; then
    step "building neptune-edge"
    cargo build --quiet --release --locked --package neptune-edge
    BINARY=$(target_dir)/release/neptune-edge
fi
out=${1:-$(target_dir)/debian}
# Reproducible: the same source gives the same package, byte by byte.
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
put 0644 build/systemd/edge.env usr/share/neptune-edge/edge.env
put 0644 docs/operations.md usr/share/doc/neptune-edge/operations.md
put 0644 docs/security.md usr/share/doc/neptune-edge/security.md
strip --strip-unneeded --remove-section=.comment "$root/usr/bin/neptune-edge" 2>/dev/null ||
    step "not stripped: strip does not support $arch"

cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: neptune
Upstream-Contact: the maintainers, through the issues of the repository
Comment:
 The program is linked with third-party libraries. Their names, licences and
 licence texts are in THIRD-PARTY-LICENSES.txt.gz in this directory.

Files: *
Copyright: 2026 The Neptune Authors
License: Apache-2.0

License: Apache-2.0
 Licensed under the Apache License, Version 2.0 (the "License"); you may not
 use this software except in compliance with the License.
 .
 Unless required by applicable law or agreed to in writing, software
 distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
 WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
 License for the specific language governing permissions and limitations under
 the License.
 .
 The full text is in LICENSE in this directory and, on Debian systems, in
 /usr/share/common-licenses/Apache-2.0.
EOF
put 0644 LICENSE usr/share/doc/neptune-edge/LICENSE
put 0644 NOTICE usr/share/doc/neptune-edge/NOTICE
python3 hack/dependencies.py licenses --target "$(rust_target "$arch")" neptune-edge >"$doc/THIRD-PARTY-LICENSES.txt"
cat >"$doc/changelog" <<EOF
neptune-edge ($version) stable; urgency=medium

  * Release $version. CHANGELOG.md in the source lists the changes.

 -- $maintainer  $(date --utc --date="@$SOURCE_DATE_EPOCH" --rfc-email)
EOF
gzip -9n "$doc/changelog" "$doc/operations.md" "$doc/security.md" "$doc/THIRD-PARTY-LICENSES.txt"
chmod 0644 "$doc"/*

# The libraries that the program is linked with. For another architecture, or without dpkg-dev: those of every build.
depends="libc6 (>= $OLDEST_GLIBC), libgcc-s1 (>= 4.2)"
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
Description: edge agent of Neptune, joint inference for KubeEdge
 Runs the inference workers of an edge node as containers, counts their
 samples, and reports status to the controller in the cloud over MQTT. It keeps
 working without a connection.
 .
 It needs a Docker engine, a broker that both agent and controller reach, and
 settings in /etc/neptune/edge.env, which neptune-edge join writes. The service
 is disabled by default.
EOF

cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
# Every step is idempotent, because upgrades run this script too.
set -e
if [ "$1" = configure ]; then
    if ! getent passwd neptune >/dev/null; then
        adduser --quiet --system --group --home /var/lib/neptune --no-create-home --gecos 'Neptune agent' neptune
    fi
    # Docker's own package accepts an existing group of this name.
    getent group docker >/dev/null || addgroup --quiet --system docker
    id -nG neptune | grep -qw docker || adduser --quiet neptune docker
    # Tokens and certificate authorities for gateways, see /usr/share/doc/neptune-edge/security.md.gz.
    [ -d /etc/neptune/secrets ] || install -d -m 0750 -o root -g neptune /etc/neptune/secrets
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        if [ -n "$2" ]; then
            # Restarts the agent only if it runs. The workers keep running meanwhile.
            deb-systemd-invoke try-restart neptune-edge.service >/dev/null || true
        fi
    fi
    if [ -z "$2" ]; then
        echo 'neptune-edge: run the line that neptune-cloud enroll NODE prints: neptune-edge join URL TOKEN'
        echo 'neptune-edge: or copy /usr/share/neptune-edge/edge.env to /etc/neptune/, edit it, and: systemctl enable --now neptune-edge'
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
# The user is kept, because files elsewhere may belong to it.
set -e
if [ "$1" = remove ] || [ "$1" = purge ]; then
    if [ -d /run/systemd/system ]; then
        systemctl --quiet --no-reload disable neptune-edge.service >/dev/null 2>&1 || true
        systemctl --system daemon-reload >/dev/null || true
    fi
fi
if [ "$1" = purge ]; then
    rm -rf /var/lib/neptune
    rm -f /etc/neptune/edge.env
    if [ -d /etc/neptune/secrets ]; then rmdir --ignore-fail-on-non-empty /etc/neptune/secrets; fi
    if [ -d /etc/neptune ]; then rmdir --ignore-fail-on-non-empty /etc/neptune; fi
fi
EOF
chmod 0755 "$root"/DEBIAN/postinst "$root"/DEBIAN/prerm "$root"/DEBIAN/postrm
find "$root" -type d -exec chmod 0755 {} +
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$out"
package=$out/neptune-edge_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
step "$package: $(stat -c %s "$package" | awk '{printf "%.1f MB", $1 / 1e6}')"

#!/usr/bin/env bash
# Runs the tests that need a container engine on Podman instead of Docker: all of edge/tests, and the end-to-end tests
# (hack/e2e) of examples, kills, power cuts, served models, datasets and user errors. Not part of hack/test.sh, because it
# takes minutes more.
#
#   ./hack/test-podman.sh           all of them
#   ./hack/test-podman.sh NAME      only the tests whose name contains NAME
#
# Run it as root. It installs Debian's podman if it is missing. The Podman that it starts stores everything in a temporary
# directory, which is removed at the end; other Podman services, images and containers on this machine are not touched.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) usage "$0"; exit 0 ;;
esac

[ "$(id -u)" = 0 ] || fail "run it as root: it tests Podman as a system service"
need_container_tests
need_all <<<"podman|podman|the engine under test
catatonit|catatonit|the first process of containers, which Debian's podman only recommends"

dir=$(mktemp -d /tmp/neptune-podman.XXXXXX)
podman=(podman --root "$dir/root" --runroot "$dir/run" --tmpdir "$dir/tmp" --network-config-dir "$dir/networks"
    --cgroup-manager cgroupfs --events-backend file)
# crun refuses hybrid cgroups (v1 and v2), which some virtual machines use; runc accepts them.
if has runc; then podman+=(--runtime "$(PATH="$PATH:/usr/sbin" command -v runc)"); fi
service=

clean_up() {
    "${podman[@]}" rm --all --force --time 0 >/dev/null 2>&1 || true
    if [ -n "$service" ]; then kill "$service" 2>/dev/null && wait "$service" || true; fi
    # conmon waits for a client that asks for the exit codes of the last commands in containers.
    pgrep --full "^/usr/[^ ]*/conmon .* $dir/" | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
    # The storage driver's bind mount of its own directory.
    umount "$dir/root/overlay" 2>/dev/null || true
    rm -rf --one-file-system "$dir"
}
trap clean_up EXIT

# Podman raises these limits of a container above its own, which needs a privilege that root lacks in some sandboxes.
minimum() { if [ "$1" = unlimited ] || [ "$1" -gt "$2" ]; then echo "$2"; else echo "$1"; fi; }
files=$(minimum "$(ulimit -Hn)" 1048576)
processes=$(minimum "$(ulimit -Hu)" "$(cat /proc/sys/kernel/pid_max)")
cat >"$dir/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
# How long the exit code of a command in a container is kept: 5 seconds instead of 5 minutes.
exit_command_delay = 5
END
export CONTAINERS_CONF=$dir/containers.conf

step "starting $(podman --version)"
export DOCKER_HOST=unix://$dir/podman.sock NEPTUNE_DOCKER_HOST=unix://$dir/podman.sock
"${podman[@]}" system service --time=0 "$DOCKER_HOST" >"$dir/log" 2>&1 &
service=$!
until docker version >/dev/null 2>&1; do
    kill -0 "$service" 2>/dev/null || fail "Podman did not start: $(tail -5 "$dir/log")"
    sleep 0.1
done

step "build"
cargo build --workspace --quiet

container_tests "${1:-}"
step "all passed"

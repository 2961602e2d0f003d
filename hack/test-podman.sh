#!/usr/bin/env bash
# The tests that need a container engine, on Podman in place of Docker: all of edge/tests, and end to end the examples,
# kills and power cuts, served models, datasets and the troubles of a user (hack/e2e). Not part of hack/test.sh: it takes
# minutes of its own.
#
#   ./hack/test-podman.sh           all of them
#   ./hack/test-podman.sh NAME      only the tests whose name contains NAME
#
# As root. Installs Debian's podman if there is none. The Podman that it starts has a directory of its own for all that it
# keeps, and goes away with it; a Podman in use on this machine, its images and containers are not touched.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

case ${1:-} in
    -*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

[ "$(id -u)" = 0 ] || fail "run it as root: this is about Podman as a service of the machine"
need_cargo
has docker || fail "docker is missing: the tests use its command on Podman's socket, on Debian: sudo apt-get install docker.io"
need podman podman "the engine to test with"
need mosquitto mosquitto "the broker of the tests"
need mosquitto_sub mosquitto-clients "to see what is published"
need kubectl kubernetes-client "the tests drive the API as a user does"
need busybox busybox-static "the tests' own image is made of it"

dir=$(mktemp -d /tmp/neptune-podman.XXXXXX)
podman=(podman --root "$dir/root" --runroot "$dir/run" --tmpdir "$dir/tmp" --network-config-dir "$dir/networks"
    --cgroup-manager cgroupfs --events-backend file)
# crun refuses cgroups v1 beside v2 (hybrid), as some virtual machines have them; runc takes both.
if has runc; then podman+=(--runtime "$(PATH="$PATH:/usr/sbin" command -v runc)"); fi
service=

clean_up() {
    "${podman[@]}" rm --all --force --time 0 >/dev/null 2>&1 || true
    if [ -n "$service" ]; then kill "$service" 2>/dev/null && wait "$service" || true; fi
    # What watched over the last commands in containers waits for somebody who asks how they ended.
    pgrep --full "^/usr/[^ ]*/conmon .* $dir/" | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
    # What the storage has mounted onto itself.
    umount "$dir/root/overlay" 2>/dev/null || true
    rm -rf --one-file-system "$dir"
}
trap clean_up EXIT

# Podman raises these limits of a container above its own, which needs a right that root lacks in some sandboxes.
least() { if [ "$1" = unlimited ] || [ "$1" -gt "$2" ]; then echo "$2"; else echo "$1"; fi; }
files=$(least "$(ulimit -Hn)" 1048576)
processes=$(least "$(ulimit -Hu)" "$(cat /proc/sys/kernel/pid_max)")
cat >"$dir/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
# Seconds, in place of minutes, for which a command that ended in a container can be asked about.
exit_command_delay = 5
END
export CONTAINERS_CONF=$dir/containers.conf

say "starting $(podman --version)"
export DOCKER_HOST=unix://$dir/podman.sock NEPTUNE_DOCKER_HOST=unix://$dir/podman.sock
"${podman[@]}" system service --time=0 "$DOCKER_HOST" >"$dir/log" 2>&1 &
service=$!
until docker version >/dev/null 2>&1; do
    kill -0 "$service" 2>/dev/null || fail "Podman does not start: $(tail -5 "$dir/log")"
    sleep 0.1
done

say "build"
cargo build --workspace --quiet

say "images"
# What Docker has already need not be built again; what is not up to date is.
for image in digits model-server python; do
    env -u DOCKER_HOST docker save "neptune/$image:dev" 2>/dev/null | docker load --quiet >/dev/null 2>&1 || true
done
./hack/build-digits-image.sh
./hack/build-model-server-image.sh
./hack/build-python-image.sh

say "tests"
# Those of demo.sh and of KubeEdge's and Kubernetes' own sides run no other container than the rest.
cargo nextest run --package neptune-edge --package neptune-e2e --no-fail-fast --final-status-level slow \
    -E "kind(test) & test(/${1:-.}/) - test(/^(demo|kubeedge|rights)::/)"
say "all passed"

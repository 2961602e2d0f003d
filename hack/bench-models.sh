#!/usr/bin/env bash
# Compares the model store, which downloads, verifies and unpacks 512 MiB over loopback in one pass, with the single
# stages `curl | sha256sum` and `tar x` on the same machine in the same run. Prints ratios (1.00: as fast as the slowest
# stage) and the peak growth of memory.
#
#   ./hack/bench-models.sh [--mib 512] [--runs 3] [--dir DIRECTORY] [--plain]
#
# --dir: parent of the working directory (default: TMPDIR). --plain: measures the uncompressed archive too, and with it
# the disk: the store syncs, and keeps what an interrupted download resumes from. `tar x` does neither, so its time is
# also printed with a sync.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

mib=512 runs=3 dir='' forms='tar.gz tar.zst'
while [ $# -gt 0 ]; do
    case $1 in
        --mib) mib=$2; shift 2 ;;
        --runs) runs=$2; shift 2 ;;
        --dir) dir=$2; shift 2 ;;
        --plain) forms="$forms tar"; shift ;;
        -h|--help) usage "$0"; exit 0 ;;
        *) fail "unknown argument $1 (see $0 --help)" ;;
    esac
done
need_cargo
need curl curl 'a stage to compare with'
need zstd zstd 'to compress an archive'
need python3 python3 'the HTTP server'

work=$(mktemp -d "${dir:-${TMPDIR:-/tmp}}/bench-models.XXXXXX")
server=
finish() { [ -z "$server" ] || kill "$server"; rm -rf "$work"; }
trap finish EXIT

step building
(cd "$ROOT" && cargo build -q --release -p neptune-store)
fetch=$(target_dir)/release/models-fetch

step "creating archives of $mib MiB"
mkdir "$work/www" "$work/model"
# Weights hardly compress; every fourth MiB here compresses well.
python3 - "$work/model" "$mib" <<'PYTHON'
import os, sys
directory, mib = sys.argv[1], int(sys.argv[2])
for number in range(8):
    with open(f"{directory}/shard-{number}", "wb") as shard:
        for at in range(mib // 8):
            shard.write(os.urandom(1 << 20) if at % 4 else os.urandom(64) * (1 << 14))
PYTHON
tar -C "$work/model" -cf "$work/www/m.tar" .
gzip -1 -c "$work/www/m.tar" >"$work/www/m.tar.gz"
zstd -q -3 -c "$work/www/m.tar" >"$work/www/m.tar.zst"

# Serves with sendfile, so that the server is not the bottleneck.
python3 - "$work" <<'PYTHON' &
import http.server, os, sys
class SendfileHandler(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source, out):
        while os.sendfile(out.fileno(), source.fileno(), None, 1 << 24):
            pass
    def log_message(self, *_):
        pass
os.chdir(sys.argv[1] + "/www")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SendfileHandler)
with open("../port.part", "w") as port:
    port.write(str(server.server_port))
os.rename("../port.part", "../port")
server.serve_forever()
PYTHON
server=$!
until [ -e "$work/port" ]; do sleep 0.05; done
url=http://127.0.0.1:$(cat "$work/port")

# best COMMAND...: prints the fewest seconds of all runs, each with an empty directory $work/out.
best() {
    for _ in $(seq "$runs"); do
        rm -rf "$work/out"; mkdir "$work/out"; sync -f "$work"
        local start end
        start=$(date +%s.%N); "$@" >"$work/last"; end=$(date +%s.%N)
        echo "$end $start" | awk '{ printf "%.3f\n", $1 - $2 }'
    done | sort -n | head -1
}
hash() { curl -sS "$url/m.$1" | sha256sum; }
unpack() { tar -C "$work/out" -xf "$work/www/m.$1"; }
unpack_synced() { unpack "$1"; sync -f "$work/out"; }
store() {
    MODELS_ALLOW=127.0.0.1 "$fetch" "$work/out" "$url/m.$1" "$(cut -d' ' -f1 "$work/sum.$1")"
}

printf '\n%-8s %10s %14s %8s %12s %9s %10s %12s %12s\n' \
    form bytes 'curl|sha256sum' 'tar x' 'tar x, sync' store 'ratio' 'ratio, sync' 'memory KiB'
for form in $forms; do
    sha256sum "$work/www/m.$form" >"$work/sum.$form"
    hashed=$(best hash "$form"); unpacked=$(best unpack "$form")
    synced=$(best unpack_synced "$form"); stored=$(best store "$form")
    growth=$(sed -n 's/.*growth_kib=\([0-9]*\).*/\1/p' "$work/last")
    diff -r "$work/model" "$work/out/sha256/"*/unpacked/model || fail "the store did not unpack $form correctly"
    awk -v f="$form" -v b="$(stat -c %s "$work/www/m.$form")" -v h="$hashed" -v u="$unpacked" \
        -v y="$synced" -v s="$stored" -v g="$growth" 'BEGIN {
            slow = h > u ? h : u; slower = h > y ? h : y
            printf "%-8s %10d %13ss %7ss %11ss %8ss %10.2f %12.2f %12d\n", f, b, h, u, y, s, slow / s, slower / s, g
        }'
done

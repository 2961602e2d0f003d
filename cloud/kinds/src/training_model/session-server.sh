# Runs the server of a session, once per attempt that the aggregator starts. The aggregator writes below
# $SESSION_DIR/in and reads what is written below $SESSION_DIR/out: see docs/training.md.
in=$SESSION_DIR/in out=$SESSION_DIR/out
# The first process of a container has no default handlers; its end is that of all others.
trap 'exit 143' TERM INT

started() { [ "$(cat "$in/start" 2>/dev/null)" = "$name" ]; }

finish() { printf %s "$1" >"$out/$name/exit.new" && mv "$out/$name/exit.new" "$out/$name/exit"; }

# Programs that the server started may outlive it.
clean_up() { [ $$ != 1 ] || kill -KILL -1 2>/dev/null; }

run() {
    mkdir "$out/$name/output" "$out/$name/state"
    (. "$in/$name/env" && exec "$@") &
    server=$!
    (while started; do sleep 1; done; kill -KILL "$server") 2>/dev/null &
    watcher=$!
    wait "$server"
    code=$?
    kill "$watcher"
    clean_up
    finish "$code"
}

printf %s "$SESSION_SERVER" >"$out/server.new" && mv "$out/server.new" "$out/server"
while :; do
    name=$(cat "$in/start" 2>/dev/null)
    if [ -z "$name" ] || [ -e "$out/$name/exit" ]; then
        sleep 1 &
        wait $!
    elif mkdir "$out/$name" 2>/dev/null; then
        run "$@"
    else
        # The container ended before the server did.
        finish 137
        sleep 1
    fi
done

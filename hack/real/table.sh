# Rows of a table: a function each, whose output goes to a log. Source it after lib.sh.
# shellcheck shell=bash

rows=() failed_rows=()

# log_of NAME: the path of a row's log.
log_of() { printf '%s/logs/%s.log' "$work" "$(printf '%s' "$1" | tr -c 'A-Za-z0-9\n' -)"; }

# result NAME RESULT SECONDS REASON: adds a row, and prints it.
result() {
    local line
    printf -v line '%-34s %-8s %6s  %s' "$1" "$2" "$3" "$4"
    rows+=("$line")
    printf '%s\n' "$line"
}

# failed_result NAME SECONDS REASON
failed_result() {
    failed_rows+=("$1")
    result "$1" failed "$2" "$3"
}

# row NAME COMMAND...: runs a row. Its reason is what the command noted (see note) or, if it failed, its last error.
# Call it as a plain command: after "if" or before "||" bash would ignore errors within it.
row() {
    local name=$1 begin=$SECONDS status log reason
    shift
    log=$(log_of "$name")
    mkdir -p "$(dirname "$log")"
    rm -f "$work/note"
    set +e
    (set -e; "$@") >"$log" 2>&1
    status=$?
    set -e
    if [ $status = 0 ]; then
        result "$name" passed $((SECONDS - begin)) "$(cat "$work/note" 2>/dev/null || true)"
        return
    fi
    reason=$(sed -n 's/.*error: //p' "$log" | tail -n 1)
    failed_result "$name" $((SECONDS - begin)) "${reason:-exit status $status}"
    diagnosis >>"$log" 2>&1 || true
    tail -n 40 "$log" | sed 's/^/    /'
}

# depends NEEDED NAME COMMAND...: a row that makes no sense if the row NEEDED failed.
depends() {
    local needed=$1
    shift
    case " ${failed_rows[*]/%/|} " in
        *" $needed| "*) skip "$1" "$needed failed" ;;
        *) row "$@" ;;
    esac
}

# skip NAME REASON
skip() { result "$1" skipped - "$2"; }

# note TEXT: what a row saw, for the table.
note() { printf '%s' "$*" >"$work/note"; }

# table TITLE: prints all rows, and exits with 1 if one failed.
table() {
    step "$1"
    printf '%-34s %-8s %6s  %s\n' NAME RESULT SECONDS REASON
    printf '%s\n' "${rows[@]}"
    [ ${#failed_rows[@]} = 0 ] || fail "${#failed_rows[@]} rows failed; their logs are in $work/logs"
}

# await SECONDS WHAT COMMAND...: repeats a command until it succeeds.
await() {
    local limit=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $limit ] || fail "timed out waiting for $what"
        sleep 0.5
    done
}

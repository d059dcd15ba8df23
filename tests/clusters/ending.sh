# Sourced by the stop.sh of each scheduler.

empty() { # COMMAND...: wait until a command prints nothing
    for _ in $(seq 200); do
        [[ -z $("$@" 2>/dev/null) ]] && return
        sleep 0.1
    done
}

gone() { # SIGNAL PIDFILE...: end the processes of pid files, one after the other; a failure if one stays
    local signal=$1 file pid left=0
    shift
    for file in "$@"; do
        [[ -s $file ]] || continue
        pid=$(cat "$file")
        kill "-$signal" "$pid" 2>/dev/null
        for _ in $(seq 300); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -0 "$pid" 2>/dev/null || continue
        echo "process $pid of $file did not end on SIG$signal within 30 s" >&2
        left=1
    done
    return "$left"
}

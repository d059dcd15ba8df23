#!/usr/bin/env bash
# Ends the Grid Engine of a folder: its jobs, then its daemons by their pid files.
#
#   usage: stop.sh STATE      as root
state=${1:?usage: stop.sh STATE}
[[ -s $state/env ]] || exit 0
set -a
. "$state/env"
set +a
qdel -f -u '*' >/dev/null 2>&1
for _ in $(seq 100); do
    [[ -z $(qstat -u '*' 2>/dev/null) ]] && break
    sleep 0.1
done
for file in "$state"/execd/*/execd.pid "$state/qmaster/qmaster.pid"; do
    [[ -s $file ]] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null
    for _ in $(seq 200); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
done
rm -f "$state/env"

#!/usr/bin/env bash
# Ends the sshd of a folder.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
[[ -s $state/sshd.pid ]] || exit 0
pid=$(cat "$state/sshd.pid")
kill "$pid"
for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
done

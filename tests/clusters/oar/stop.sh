#!/usr/bin/env bash
# Ends the OAR of a folder: its jobs, its server and nodes, its database.
#
#   usage: stop.sh STATE      as root
state=${1:?usage: stop.sh STATE}
[[ -d $state/postgres ]] || exit 0
gone() { # PIDFILE: end a process and wait for it
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
}
oarstat 2>/dev/null | awk 'NR > 2 { print $1 }' | xargs -r oardel >/dev/null 2>&1
for _ in $(seq 50); do
    [[ -z $(oarstat 2>/dev/null) ]] && break
    sleep 0.2
done
gone /run/oar-server.pid
gone "$state/sshd.pid"
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
runuser -u postgres -- "$programs/pg_ctl" -D "$state/postgres/data" -m fast -w stop >/dev/null
rm -rf "$state/env" "$state/postgres"
umount /etc/oar

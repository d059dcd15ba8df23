#!/usr/bin/env bash
# Ends the OAR of a folder: its jobs, its server and nodes, its database.
#
#   usage: stop.sh STATE      as root
state=${1:?usage: stop.sh STATE}
. "$(dirname "${BASH_SOURCE[0]}")/../ending.sh"
[[ -d $state/postgres ]] || exit 0
oarstat 2>/dev/null | awk 'NR > 2 { print $1 }' | xargs -r oardel >/dev/null 2>&1
empty oarstat
gone TERM /run/oar-server.pid "$state/sshd.pid"
# busy with a module, the server takes no TERM; in a namespace of our own all that is called so is ours
for _ in $(seq 50); do
    left=$(pgrep -f '^(/usr/bin/perl )?/usr/lib/oar/|^Almighty') || break
    kill -KILL $left 2>/dev/null
    sleep 0.1
done
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
runuser -u postgres -- "$programs/pg_ctl" -D "$state/postgres/data" -m fast -w stop >/dev/null
rm -rf "$state/env" "$state/postgres"
umount /etc/oar

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
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
runuser -u postgres -- "$programs/pg_ctl" -D "$state/postgres/data" -m fast -w stop >/dev/null
rm -rf "$state/env" "$state/postgres"
umount /etc/oar

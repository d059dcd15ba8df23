#!/usr/bin/env bash
# Ends the Grid Engine of a folder: its jobs, then its daemons by their pid files.
#
#   usage: stop.sh STATE      as root
state=${1:?usage: stop.sh STATE}
. "$(dirname "${BASH_SOURCE[0]}")/../ending.sh"
[[ -s $state/env ]] || exit 0
set -a
. "$state/env"
set +a
qdel -f -u '*' >/dev/null 2>&1
empty qstat -u '*'
gone TERM "$state"/execd/*/execd.pid "$state/qmaster/qmaster.pid"
rm -f "$state/env"

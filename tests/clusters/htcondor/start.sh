#!/usr/bin/env bash
# A personal HTCondor: one machine of sixteen slots.
#
#   usage: start.sh STATE      as the user that will submit, not root; prints how to reach it
set -euo pipefail
state=${1:?usage: start.sh STATE}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=${HTCONDOR:?the folder that install.sh filled}
mkdir -p "$state"/{run,log,lock,spool,execute}
chmod 755 "$state" "$state"/*
sed -e "s|@STATE@|$state|g" -e "s|@PREFIX@|$prefix|g" "$here/condor_config.in" >"$state/condor_config"
export CONDOR_CONFIG=$state/condor_config PATH=$prefix/usr/bin:$prefix/usr/sbin:$PATH
condor_master -pidfile "$state/run/master.pid"
for _ in $(seq 900); do
    condor_status -af Name 2>/dev/null | grep -q . && condor_q >/dev/null 2>&1 && up=1 && break
    sleep 0.1
done
[[ ${up:-} ]] || { tail -n 20 "$state"/log/*Log; exit 1; }
echo "CONDOR_CONFIG=$CONDOR_CONFIG"
echo "PATH=$PATH"

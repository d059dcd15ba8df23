#!/usr/bin/env bash
# Ends the HTCondor of a folder: its jobs, then its daemons.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
export CONDOR_CONFIG=$state/condor_config PATH=$HTCONDOR/usr/bin:$HTCONDOR/usr/sbin:$PATH
condor_rm -all >/dev/null 2>&1
for _ in $(seq 100); do
    [[ -z $(condor_q -allusers -af ClusterId 2>/dev/null) ]] && break
    sleep 0.1
done
[[ -s $state/run/master.pid ]] || exit 0
pid=$(cat "$state/run/master.pid")
kill -QUIT "$pid" # at once
for _ in $(seq 300); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
done

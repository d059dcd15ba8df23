#!/usr/bin/env bash
# Ends the HTCondor of a folder: its jobs, then its daemons.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
. "$(dirname "${BASH_SOURCE[0]}")/../ending.sh"
export CONDOR_CONFIG=$state/condor_config PATH=$HTCONDOR/usr/bin:$HTCONDOR/usr/sbin:$PATH
condor_rm -all >/dev/null 2>&1
empty condor_q -allusers -af ClusterId
gone QUIT "$state/run/master.pid" # at once

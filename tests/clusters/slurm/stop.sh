#!/usr/bin/env bash
# Ends the SLURM of a folder: its jobs, then its daemons by their pid files.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
. "$(dirname "${BASH_SOURCE[0]}")/../ending.sh"
export SLURM_CONF=$state/etc/slurm.conf
scancel --user "$(id -un)" 2>/dev/null
empty squeue -h
gone TERM "$state"/pid/slurmd.*.pid "$state"/pid/slurmctld.pid "$state"/munge/munged.pid

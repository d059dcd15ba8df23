#!/usr/bin/env bash
# Ends the SLURM of a folder: its jobs, then its daemons by their pid files.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
export SLURM_CONF=$state/etc/slurm.conf
scancel --user "$(id -un)" 2>/dev/null
for _ in $(seq 100); do
    [[ -z $(squeue -h 2>/dev/null) ]] && break
    sleep 0.1
done
for file in "$state"/pid/slurmd.*.pid "$state"/pid/slurmctld.pid "$state"/munge/munged.pid; do
    [[ -s $file ]] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
done

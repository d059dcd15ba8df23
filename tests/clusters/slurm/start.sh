#!/usr/bin/env bash
# Real SLURM, four nodes on this machine, everything on loopback and under one folder.
#
#   usage: start.sh STATE      as the user that will submit; prints how to reach it
#   LAB_CPUS, LAB_MEMORY       what each node believes to have (4, 4000 MB)
#   LAB_LOOK                   seconds between looks at a job's memory (1), each at all processes of the machine
set -euo pipefail
state=${1:?usage: start.sh STATE}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$state"/{etc,log,pid,ctld,munge,spool.n1,spool.n2,spool.n3,spool.n4}
chmod 755 "$state"
chmod 711 "$state/munge" # munged insists on safe modes

dd if=/dev/urandom of="$state/munge/munge.key" bs=1024 count=1 status=none
chmod 400 "$state/munge/munge.key"
munged --key-file="$state/munge/munge.key" --socket="$state/munge/munge.socket" \
    --pid-file="$state/munge/munged.pid" --log-file="$state/munge/munged.log" \
    --seed-file="$state/munge/munge.seed" --num-threads=2

sed -e "s|@STATE@|$state|g" -e "s|@HOST@|$(hostname -s)|g" -e "s|@USER@|$(id -un)|g" \
    -e "s|@CPUS@|${LAB_CPUS:-4}|g" -e "s|@MEMORY@|${LAB_MEMORY:-4000}|g" \
    -e "s|@LOOK@|${LAB_LOOK:-1}|g" \
    "$here/slurm.conf.in" >"$state/etc/slurm.conf"
export SLURM_CONF=$state/etc/slurm.conf
/usr/sbin/slurmctld -c
for node in n1 n2 n3 n4; do
    /usr/sbin/slurmd -N "$node"
done
for _ in $(seq 900); do
    [[ $(sinfo -h -N -p debug -o %T 2>/dev/null | grep -c idle) == 4 ]] && break
    sleep 0.1
done
[[ $(sinfo -h -N -p debug -o %T | grep -c idle) == 4 ]] || { sinfo -N -l; exit 1; }
echo "SLURM_CONF=$SLURM_CONF"

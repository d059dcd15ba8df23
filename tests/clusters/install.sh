#!/usr/bin/env bash
# Installs SLURM, Grid Engine, OAR and sshd from Debian, and unpacks HTCondor into a folder.
#
#   usage: install.sh HTCONDOR_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
condor=${1:?usage: install.sh HTCONDOR_FOLDER}
export DEBIAN_FRONTEND=noninteractive

packages=(
    iproute2 util-linux patchelf
    slurmctld slurmd slurm-client munge
    openssh-server openssh-client
    gridengine-master gridengine-exec gridengine-client
    oar-server oar-server-pgsql oar-user oar-node taktuk libdbd-pg-perl postgresql
)
missing=()
for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == 'install ok installed' ]] || missing+=("$package")
done
if [[ ${#missing[@]} != 0 ]]; then
    echo "installing ${missing[*]}"
    # a daemon that its package starts would listen on every address
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    apt-get -o DPkg::Lock::Timeout=600 update -qq
    apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
[[ -e $condor/complete ]] || "$here/htcondor/install.sh" "$condor"

#!/usr/bin/env bash
# One sshd on four loopback addresses, with a host key and a user key of its own.
#
#   usage: start.sh STATE      as the user that will log in; prints how to reach it
set -euo pipefail
state=${1:?usage: start.sh STATE}
port=12222
mkdir -p "$state"
chmod 700 "$state"
ssh-keygen -q -t ed25519 -N '' -f "$state/host"
ssh-keygen -q -t ed25519 -N '' -f "$state/key"
ssh-keygen -q -t ed25519 -N '' -f "$state/stranger" # a key that nobody knows
cp "$state/key.pub" "$state/authorized_keys"
for i in 1 2 3 4; do
    echo "[127.0.0.$i]:$port $(cut -d' ' -f1,2 "$state/host.pub")"
done >"$state/known_hosts"
cat >"$state/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
ListenAddress 127.0.0.4
HostKey $state/host
PidFile $state/sshd.pid
AuthorizedKeysFile $state/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
MaxSessions 100
END
/usr/sbin/sshd -f "$state/sshd_config" -E "$state/sshd.log"
for _ in $(seq 300); do
    ssh -p $port -i "$state/key" -o UserKnownHostsFile="$state/known_hosts" -o BatchMode=yes 127.0.0.2 true \
        2>"$state/probe.log" && up=1 && break
    sleep 0.1
done
[[ ${up:-} ]] || { cat "$state/probe.log" "$state/sshd.log"; exit 1; }
echo "SSH_STATE=$state"
echo "SSH_PORT=$port"

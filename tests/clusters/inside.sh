#!/usr/bin/env bash
# Runs pytest as an ordinary user, in the namespaces that run.sh has made; the root half of it.
#
#   usage: inside.sh STATE PYTHON [pytest arguments | -m MODULE arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
state=$1
python=$2
shift 2
user=espnet3test

ip link set lo up
# to glibc's AI_ADDRCONFIG a machine that has no address but 127.0.0.1 has none at all
ip address add 127.0.0.2/8 dev lo

# --- an /etc of their own, as a whole: over one file of it a mount is gone once anybody outside, such as a package
# that makes its user, puts another in its place. A file may vanish while it is copied, so there is a second try.
mkdir -p "$state/etc" "$state/home" "$state/tmp"
cp -a /etc/. "$state/etc" || cp -a /etc/. "$state/etc"

# --- two users that only these namespaces know: the tests', and another who must be let in nowhere
other=espnet3other
echo "$other:x:64243:64243::/nonexistent:/bin/sh" >>"$state/etc/passwd"
echo "$other:x:64243:" >>"$state/etc/group"
echo "$user:x:64242:64242::$state/home:/bin/bash" >>"$state/etc/passwd"
echo "$user:x:64242:" >>"$state/etc/group"
echo "$user:*:19000:0:99999:7:::" >>"$state/etc/shadow" # no password, and not locked
# the nodes of SLURM by name, as a program that SLURM starts on several of them looks for the others
echo '127.0.0.1 n1 n2 n3 n4' >>"$state/etc/hosts"
mount --bind "$state/etc" /etc
mount -t tmpfs -o mode=755 none /run # pid files of daemons, whose numbers mean nothing elsewhere
chown 64242:64242 "$state/home" "$state/tmp"

# --- a home of mode 700 hides the repository and its python from that user: show just these
source "$here/show.sh"
show_to "$user" "$state/shown" "$repository" "$(dirname "$(dirname "$python")")" \
    "$(dirname "$(dirname "$(readlink -f "$python")")")"

# --- the second user: runs what the tests hand it, and nothing else
install -d -o "$other" -m 755 "$state/other"
(cd / && exec setpriv --reuid=64243 --regid=64243 --clear-groups env -i PYTHONDONTWRITEBYTECODE=1 \
    "$python" "$here/second_account.py" "$state/other/door") &
second=$!

# --- schedulers whose daemons must be root; the others are started by the tests that need them
stop() {
    kill "$second" 2>/dev/null && wait "$second" || true
    for name in oar sge; do
        [[ ! -d $state/$name ]] || "$here/$name/stop.sh" "$state/$name" || echo "$name did not stop" >&2
    done
}
trap stop EXIT
for name in ${CLUSTERS-sge oar}; do # empty: none of them
    "$here/$name/start.sh" "$state/$name" "$user"
done

cd "$repository"
if [[ ${1:-} != -m ]]; then # a module of its own choice may be run there too: a benchmark
    [[ " $* " == *tests/* ]] || set -- tests/clusters "$@"
    set -- -m pytest -m clusters --durations=12 -p no:cacheprovider "$@"
fi
code=0
runuser -u "$user" -- env \
    HTCONDOR="$(dirname "$(dirname "$python")")/htcondor" HOME="$state/home" TMPDIR="$state/tmp" USER="$user" LOGNAME="$user" PYTHONDONTWRITEBYTECODE=1 \
    ESPNET3_CLUSTERS="$state" ESPNET3_CORPUS="${ESPNET3_CORPUS:-}" PATH="$(dirname "$python"):/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" \
    "$python" "$@" || code=$?
stop
trap - EXIT

# --- nothing may be left: no process but this one and what asks
left=
for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    [[ $pid == 1 || $pid == $$ || $pid == "$BASHPID" ]] && continue
    command=$(tr '\0' ' ' <"$folder/cmdline" 2>/dev/null) || continue
    [[ -z $command ]] || left+="$pid $command"$'\n'
done
if [[ -n $left ]]; then
    printf 'processes that the tests left:\n%s\n' "$left" >&2
    code=1
fi
exit "$code"

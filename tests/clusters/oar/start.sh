#!/usr/bin/env bash
# Real OAR 2.5: server, two nodes (127.0.0.2 and 127.0.0.3) of four cores, and a PostgreSQL of its own.
# Its server listens on every address there is: start it where there is only loopback, and where
# mounts are private: its commands read /etc/oar/oar.conf and nothing else.
#
#   usage: start.sh STATE USER      as root; that user may submit, root may not
set -euo pipefail
state=${1:?usage: start.sh STATE USER}
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
data=$state/postgres
mkdir -p "$state"
chmod 755 "$state"

# --- the database, which refuses to run as root
install -d -o postgres -g postgres -m 700 "$data"
runuser -u postgres -- "$programs/initdb" -D "$data/data" -A trust -E UTF8 --locale=C.UTF-8 >"$state/initdb.log" 2>&1
runuser -u postgres -- "$programs/pg_ctl" -D "$data/data" -l "$data/log" -w start -o "-c listen_addresses=127.0.0.1 \
-c unix_socket_directories=$data -c fsync=off -c shared_buffers=32MB -p 5432" >/dev/null

# --- /etc/oar of these mounts alone
cp -a /etc/oar "$state/etc"
sed -i -e 's|^DB_BASE_PASSWD=.*|DB_BASE_PASSWD="oar"|' -e 's|^DB_BASE_PASSWD_RO=.*|DB_BASE_PASSWD_RO="oar_ro"|' \
    -e 's|^SERVER_HOSTNAME=.*|SERVER_HOSTNAME="localhost"|' -e 's|^LOG_LEVEL=.*|LOG_LEVEL="3"|' \
    -e 's|^\(JOB_RESOURCE_MANAGER_PROPERTY_DB_FIELD=\)|#\1|' \
    -e 's|^PINGCHECKER_SENTINELLE.*|PINGCHECKER_GENERIC_COMMAND="/bin/true"|' \
    -e 's|^SCHEDULER_JOB_SECURITY_TIME=.*|SCHEDULER_JOB_SECURITY_TIME="1"|' \
    -e 's|^#*SCHEDULER_MIN_TIME_BETWEEN_2_CALLS=.*|SCHEDULER_MIN_TIME_BETWEEN_2_CALLS="1"|' \
    -e 's|^OPENSSH_CMD=.*|OPENSSH_CMD="/usr/bin/ssh -p 6667 -e none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"|' \
    -e "s|^OAR_RUNTIME_DIRECTORY=.*|OAR_RUNTIME_DIRECTORY=\"$state/jobs\"|" \
    -e "s|^LOG_FILE=.*|LOG_FILE=\"$state/oar.log\"|" "$state/etc/oar.conf"
mount --bind "$state/etc" /etc/oar
touch "$state/oar.log"
chown oar "$state/oar.log"
install -d -o oar "$state/jobs" # files named after a job's number: those of two servers may not meet
PGHOST=127.0.0.1 oar-database --create --db-admin-user postgres --db-admin-pass x -y >"$state/database.log" 2>&1

# --- the nodes: an sshd that only the user oar may log in to
mkdir -p /run/sshd /run/oar
sed -e '/^ListenAddress/d' -e '/^\(UsePrivilegeSeparation\|Protocol\|KeepAlive\|PrintMotd\)/d' \
    /etc/oar/sshd_config >"$state/sshd_config"
printf 'ListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nPidFile %s/sshd.pid\nStrictModes no\n' \
    "$state" >>"$state/sshd_config"
/usr/sbin/sshd -f "$state/sshd_config" -E "$state/sshd.log"

# --- the server
/usr/sbin/oar-server
for _ in $(seq 600); do
    (: </dev/tcp/127.0.0.1/6666) 2>/dev/null && break
    sleep 0.1
done
oarproperty -c -a host >/dev/null 2>&1 || true # these three may be there already
oarproperty -a cpu >/dev/null 2>&1 || true
oarproperty -a core >/dev/null 2>&1 || true
core=1
for node in 2 3; do
    for set in 0 1 2 3; do
        oarnodesetting -a -h 127.0.0.$node -p host=127.0.0.$node -p cpu=$node -p core=$core -p cpuset=$set >/dev/null
        core=$((core + 1))
    done
done
for _ in $(seq 600); do
    [[ $(oarnodes -l 2>/dev/null | wc -l) -ge 2 ]] && up=1 && break
    sleep 0.1
done
[[ ${up:-} ]] || { echo 'the nodes of OAR did not come up'; tail -n 20 "$state/oar.log"; exit 1; }
echo "OAR_STATE=$state" | tee "$state/env"

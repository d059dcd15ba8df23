#!/usr/bin/env bash
# Real Son of Grid Engine: qmaster and execd of one host, one queue of 16 slots, under one folder.
# Both daemons listen on every address there is: start them where there is only loopback.
#
#   usage: start.sh STATE USER      as root; prints how to reach it
set -euo pipefail
state=${1:?usage: start.sh STATE USER}
user=${2:?usage: start.sh STATE USER}
debian=/var/lib/gridengine
host=$(hostname -s)
export SGE_ROOT=$state/root SGE_CELL=default SGE_QMASTER_PORT=16444 SGE_EXECD_PORT=16445

mkdir -p "$SGE_ROOT/default/common" "$state"/{spooldb,qmaster/job_scripts,execd,tmp}
for folder in bin lib util utilbin; do
    ln -s "$debian/$folder" "$SGE_ROOT/$folder"
done
sed -e "s|^spooling_params .*|spooling_params $state/spooldb|" \
    -e "s|^qmaster_spool_dir .*|qmaster_spool_dir $state/qmaster|" -e 's|^admin_user .*|admin_user root|' \
    /usr/share/gridengine/default-bootstrap >"$SGE_ROOT/default/common/bootstrap"
echo "$host" >"$SGE_ROOT/default/common/act_qmaster"
# 127.0.0.1 resolves to localhost, not to the host's name: without the alias every client is refused
others=$(getent hosts 127.0.0.1 | cut -d' ' -f2- | tr -s ' ' '\n' | grep -vx -e "$host" -e localhost | tr '\n' ' ' || true)
echo "$host localhost $others" >"$SGE_ROOT/default/common/host_aliases"
sed -e "s|^execd_spool_dir .*|execd_spool_dir $state/execd|" -e 's|^min_uid .*|min_uid 0|' \
    -e 's|^min_gid .*|min_gid 0|' -e 's|^load_report_time .*|load_report_time 00:00:05|' \
    -e 's|^mailer .*|mailer /bin/true|' -e 's|flush_time=00:00:15|flush_time=00:00:01|' \
    /usr/share/gridengine/default-configuration >"$state/configuration"
tools=/usr/lib/gridengine
$tools/spoolinit berkeleydb libspoolb "$state/spooldb" init
$tools/spooldefaults configuration "$state/configuration"
$tools/spooldefaults complexes /usr/share/gridengine/util/resources/centry
$tools/spooldefaults usersets /usr/share/gridengine/util/resources/usersets
$tools/spooldefaults managers root

retried() { # just after its start the qmaster drops connections
    local i
    for i in $(seq 60); do
        qconf "$@" && return 0
        sleep 0.3
    done
    return 1
}
/usr/sbin/sge_qmaster
for _ in $(seq 300); do
    qconf -sh >/dev/null 2>&1 && break
    sleep 0.1
done
qconf -ah "$host" >/dev/null 2>&1 || true # an admin host; it may be one already
retried -as "$host" >/dev/null
retried -au "$user" arusers >/dev/null 2>&1 || true # only some sites restrict who submits

cat >"$state/exec" <<END
hostname $host
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
END
retried -Ae "$state/exec" >/dev/null
printf 'group_name @allhosts\nhostlist %s\n' "$host" >"$state/group"
retried -Ahgrp "$state/group" >/dev/null
cat >"$state/pe" <<'END'
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args /bin/true
stop_proc_args /bin/true
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
END
retried -Ap "$state/pe" >/dev/null
retried -sq >"$state/queue"
sed -i -e 's|^qname .*|qname all.q|' -e 's|^hostlist .*|hostlist @allhosts|' -e 's|^slots .*|slots 16|' \
    -e 's|^shell .*|shell /bin/bash|' -e 's|^load_thresholds .*|load_thresholds NONE|' \
    -e 's|^pe_list .*|pe_list smp|' -e 's|^rerun .*|rerun FALSE|' -e 's|^notify .*|notify 00:00:05|' \
    -e "s|^tmpdir .*|tmpdir $state/tmp|" "$state/queue" # folders of jobs' numbers: those of two servers may not meet
retried -Aq "$state/queue" >/dev/null
retried -ssconf >"$state/sched"
sed -i -e 's|^schedule_interval .*|schedule_interval 0:0:1|' -e 's|^flush_submit_sec .*|flush_submit_sec 1|' \
    -e 's|^flush_finish_sec .*|flush_finish_sec 1|' -e 's|^job_load_adjustments .*|job_load_adjustments NONE|' \
    "$state/sched"
qconf -Msconf "$state/sched" >/dev/null
/usr/sbin/sge_execd
for _ in $(seq 900); do
    qstat -f 2>/dev/null | grep -qE '^all.q@.* lx-amd64 *$' && up=1 && break
    sleep 0.1
done
[[ ${up:-} ]] || { echo 'the execd did not register'; qstat -f; exit 1; }
chmod 755 "$state"
for name in SGE_ROOT SGE_CELL SGE_QMASTER_PORT SGE_EXECD_PORT; do
    echo "$name=${!name}"
done | tee "$state/env"

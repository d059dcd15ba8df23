"""The rows of the batch schedulers, one record each."""

from espnet3.parallel.backends.backend import batch_backend
from espnet3.parallel.backends.scheduler import Question, Scheduler, SubmitBy, words

_NAME = r"[ =]*(\"[^\"]*\"|'[^']*'|[^\s\"']+)"  # of a job, behind the option for it
_NOT_ON = r"(?:h|hostname)=!\(?([^(),\s\"']+)\)?"  # nodes that a job of SGE keeps away from

SLURM = batch_backend(
    "slurm",
    "SLURM",
    Scheduler(
        mark="#SBATCH",
        array="--array={first}-{last}%{limit}",
        index="$SLURM_ARRAY_TASK_ID",
        element="{job}_{index}",
        # the second: --parsable
        submitted=(r"Submitted batch job (\d+)(?: on cluster \S+)?", r"(\d+)(?:;\S+)?"),
        first=0,
        element_log=("%J", "%A_%a"),
        naming=f"(?:-J|--job-name){_NAME}",
        named=Question(
            command=("squeue", "-h", "-t", "all", "-u", "{user}", "-o", "%F|%j"),
            line=r"^(?P<job>\d+)\|(?P<name>.*)$",
        ),
        elsewhere=r"-M|--clusters?(?![\w-])|SBATCH_CLUSTERS=|SLURM_CLUSTERS=(?:\S*,|all$)",
        place=("SLURM_CLUSTERS", "SLURM_CONF"),
        site_limit=(("scontrol", "show", "config"), r"^MaxArraySize\s*=\s*(\d+)"),
        listing=("squeue", "-h", "-r", "-t", "all", "-u", "{user}", "-o", "%i|%T|%r|%N"),
        line=r"^(?P<id>[\d_]+)\|(?P<word>[^|]+)\|(?P<reason>[^|]*)\|(?P<node>.*)$",
        words=words(
            waiting="PENDING CONFIGURING REQUEUE",
            running="RUNNING COMPLETING STAGE_OUT SUSPENDED STOPPED RESIZING SIGNALING",
            held="REQUEUE_HOLD SPECIAL_EXIT",
            ended="COMPLETED",
            failed="FAILED BOOT_FAIL DEADLINE",
            out_of_memory="OUT_OF_MEMORY",
            timeout="TIMEOUT",
            preempted="PREEMPTED",
            node_fail="NODE_FAIL",
            cancelled="CANCELLED",
            evicted="REVOKED",
        ),
        questions=(
            # a job is forgotten MinJobAge after its end: of the whole array this is said at once
            Question(
                command=("scontrol", "show", "job", "{job}"),
                line=r"ArrayJobId={job} ArrayTaskId={index} (?s:.*?)JobState=(?P<word>\w+) Reason=(?P<reason>\S+)",
                unknown=r"Invalid job id specified|^Job {job} not found",
            ),
            Question(
                command=("scontrol", "show", "job", "{id}"),
                line=r"JobState=(?P<word>\w+) Reason=(?P<reason>\S+)",
                unknown=r"Invalid job id specified|^Job {id} not found",
            ),
            Question(
                command=("sacct", "-X", "-n", "-P", "-j", "{job}", "-o", "JobID,State"),
                line=r"^{id}\|(?P<word>[A-Z_]+)",
                only_ends=True,
            ),
        ),
        look="scontrol show job {id}",
        avoid="--exclude={nodes}",
        avoided=r"(?:(?<!\S)--exclude(?:=|\s+)|(?<!\S)-x\s*)(\S+)",
        output="-[oe]|--output|--error",
        unlimited="UNLIMITED",
        extra=("-o out-%A_%a.txt",),
        expired="DUE TO TIME LIMIT",
        # of jobacct_gather, whose kill the queue calls FAILED, and of the cgroup plugins
        starved=r"exceeded (?:job |step )?memory limit|oom[-_ ]kill|Out Of Memory",
        rerun=("--requeue",),
        requeue='scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
    ),
)

PBS = batch_backend(
    "pbs",
    "PBS",
    Scheduler(
        mark="#PBS",
        array="-J {first}-{last}%{limit}",
        index="$PBS_ARRAY_INDEX",
        element="{job}[{index}]",
        submitted=(r"(\d+)(?:\[\])?\.[A-Za-z][\w.-]*", r"(\d+)(?:\[\])?"),
        first=0,
        array_of_one=False,  # OpenPBS refuses it
        cancel="{job}[]",
        naming=f"-N{_NAME}",
        named=Question(
            command=("qstat", "-f", "{ids}"),
            line=r"^Job Id: (?P<job>\d+)(?:(?!^Job Id: )(?s:.))*?Job_Name = (?P<name>.*)$",
        ),
        elsewhere=r"-q\s*\S*@",
        place=("PBS_SERVER", "PBS_DEFAULT"),
        # the wide table of OpenPBS and Torque, with the elements of arrays
        listing=("qstat", "-t", "-u", "{user}"),
        # the last column but one is the state; 7[] is a whole array
        line=r"^(?P<id>\d+(?:\[\d*\])?)(?![\d\[])\S*\s.*\s(?P<word>[A-Z])\s+[-:\d]+\s*$",
        words=words(waiting="Q W T", running="R E B S U", held="H", ended="C F X finished"),
        questions=(
            Question(
                command=("qstat", "-f", "{ids}"),
                # a comment stands below the state, and says why a job can never run
                line=(
                    r"^Job Id: {id}(?![\d\[])(?:(?!^Job Id: )(?s:.))*?job_state = (?P<word>[A-Z])"
                    r"(?:(?:(?!^Job Id: )(?s:.))*?^\s+comment = (?P<reason>.*)$)?"
                    r"|{id}(?![\d\[])\S* Job has (?P<ended>finished)"
                ),
                unknown=r"Unknown Job Id:? {id}(?![\d\[])",
            ),
        ),
        look="qstat -f {id}",
        comment=(("qstat", "-f", "{id}"), r"^\s*comment = (.+(?:\n\t.+)*)"),
        # PBS copies output when a job has ended; where it cannot, the job stays in state E for half a minute, and a
        # mail follows. In a subshell, because a redirection of `:` that fails ends a POSIX shell
        shell_line="-S {shell}",  # the user's login shell, without it
        site_limit=(("qstat", "-Bf"), r"^\s*max_array_size = (\d+)"),
        worker_logs=("-o /dev/null", "-e /dev/null"),
        worker_prints='f={folder}/"${PBS_JOBID%%.*}.out"; (: >>"$f") 2>/dev/null && exec >>"$f" 2>&1',
        extra=("-j oe",),
        starved=r"PBS: job killed: mem \S+ exceeded limit",
        expired=r"PBS: job killed: walltime \d+ exceeded limit",
        rerun=("-r y",),
    ),
)

SGE = batch_backend(
    "sge",
    "SGE",
    Scheduler(
        mark="#$",
        array="-t {first}-{last} -tc {limit}",
        index="$SGE_TASK_ID",
        element="{job}.{index}",
        submitted=(
            r"Your job(?:-array)? (\d+)(?:\.\S+)? \(.*\) has been submitted",
            r"(\d+)(?:\.\d+-\d+:\d+)?",
        ),
        naming=f"-N{_NAME}",
        named=Question(
            command=("qstat", "-r", "-u", "{user}"),
            line=r"^\s*(?P<job>\d+)\s+[\d.]+\s.*\n\s+Full jobname:\s+(?P<name>.*)$",
        ),
        place=("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT"),
        listing=("qstat", "-g", "d", "-u", "{user}"),
        # after the time come queue@node once it runs, the slots, and in an array the index
        line=(
            r"^\s*(?P<job>\d+)\s+[\d.]+\s+\S+\s+\S+\s+(?P<word>\w+)\s+\S+\s+\S+\s+"
            r"(?:(?!\d+\s)\S+?(?:@(?P<node>\S+))?\s+)*\d+(?:\s+(?P<index>\d+))?\s*$"
        ),
        words=words(waiting="qw hRwq Rq", running="r t R s S T d", held="hqw hRqw", stuck="E"),
        questions=(
            Question(command=("qstat", "-j", "{job}"), unknown=r"do not exist:?\s+{job}\b"),
            Question(
                command=("qacct", "-j", "{job}", "-t", "{index}"),
                # 99 asks to be queued again, and is no end
                line=r"^failed\s+(?P<word>\d+)(?=.*\nexit_status\s+(?!99\b)\d)",
                # 37: at a limit of time; 24 to 26: moved or queued again
                words=words(ended="0 1 2 3 4 5 6 7 8 9", timeout="37", waiting="24 25 26"),
                only_ends=True,
            ),
        ),
        look="qstat -j {id}",
        # of a job in state E the error; else what the last round of the scheduler found, where the site has it say that
        comment=(
            ("qstat", "-j", "{job}"),
            r"^(?:error reason\s+\d+|scheduling info):[^\S\n]*(\S.*(?:\n[^\S\n]{10,}\S.*)*)",
        ),
        avoid="-l h=!({nodes})",
        joint="|",
        avoided=rf"-l\s+[\"']?{_NOT_ON}[\"']?(?=\s|$)|,{_NOT_ON}|{_NOT_ON},|^{_NOT_ON}$",
        shell_line="-S {shell}",  # a queue's own shell may be csh
        unlimited="INFINITY",
        site_limit=(("qconf", "-sconf"), r"^max_aj_tasks\s+(\d+)"),
        rerun=("-r y",),
        again=99,
    ),
)

_BJOBS = ("bjobs", "-a", "-noheader", "-o", "jobid jobindex stat exec_host delimiter='|'")
LSF = batch_backend(
    "lsf",
    "LSF",
    Scheduler(
        mark="#BSUB",
        submit_by=SubmitBy.STDIN,
        array='-J "{name}[{first}-{last}]%{limit}"',
        index="$LSB_JOBINDEX",
        element="{job}[{index}]",
        submitted=(r"Job <(\d+)> is submitted\b.*",),
        element_log=("%J", "%J_%I"),
        replaces="-J",
        naming=f"-J{_NAME}",
        named=Question(
            command=("bjobs", "-noheader", "-u", "{user}", "-o", "jobid job_name delimiter='|'"),
            line=r"^(?P<job>\d+)\|(?P<name>[^\[\n]*)",
        ),
        place=("LSF_ENVDIR",),
        listing=(*_BJOBS, "-u", "{user}"),
        no_jobs="No (?:unfinished )?job found",
        line=r"^(?P<job>\d+)\|(?:0|(?P<index>\d+))\|(?P<word>\w+)\|(?P<node>\S*)",
        words=words(
            waiting="PEND WAIT", running="RUN USUSP SSUSP", held="PSUSP", ended="DONE", failed="EXIT ZOMBI"
        ),
        questions=(
            Question(
                command=(*_BJOBS, "{ids}"),
                line=r"^{job}\|(?:{index}|0)\|(?P<word>\w+)\|",  # a job alone has the index 0
                unknown=r"Job <{id}> is not found",
            ),
        ),
        look="bjobs -l {id}",
        comment=(("bjobs", "-p", "{id}"), r"^[^\S\n]+(\S.*)$"),  # below a job's own line, one reason a line
        minutes_last=True,
        writes_seconds=False,
        output="-[oe]o?",
        site_limit=(("bparams", "-a"), r"^\s*MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)"),
        extra=("-o out-%J_%I.txt",),
        starved="TERM_MEMLIMIT",
        expired="TERM_RUNLIMIT",
        rerun=("-r",),
    ),
)

HTCONDOR = batch_backend(
    "htcondor",
    "HTCondor",
    Scheduler(
        mark="",
        submit_by=SubmitBy.DESCRIPTION,
        array="queue {count}",
        index="$1",
        element="{job}.{index}",
        submitted=(
            r"(?:Submitting job\(s\)\.*\s*)?\d+ job\(s\) submitted to cluster (\d+)\.",
            r"(\d+)\.\d+ - \1\.\d+",
        ),
        naming=r"(?im:^(?:batch_name|\+?(?:my\.)?JobBatchName) *= *(.*)$)",
        named=Question(
            command=("condor_q", "{user}", "-af:j", "JobBatchName"),
            line=r"^(?P<job>\d+)\.\d+ (?!undefined$)(?P<name>.*)$",
        ),
        elsewhere=r"-(?:name|remote|pool|addr|[nr])(?!\S)",
        place=("_CONDOR_SCHEDD_HOST", "_CONDOR_SCHEDD_NAME", "CONDOR_CONFIG"),
        first=0,
        most=100_000,
        listing=("condor_q", "{user}", "-af:j", "JobStatus", "RemoteHost", "HoldReason"),
        line=r"^(?P<id>\d+\.\d+)\s+(?P<word>\d)\s+(?P<node>\S+)\s+(?P<reason>.*)$",
        words=words(waiting="1", running="2 6 7", leaving="3", ended="4", held="5"),
        # with max_materialize only so many elements are made at a time, and only those are listed
        to_come=(
            ("condor_q", "{user}", "-factory", "-af", "ClusterId", "JobMaterializeNextProcId"),
            r"^(?P<job>\d+) (?P<next>\d+)$",
        ),
        questions=(
            Question(command=("condor_q", "{job}", "-totals"), unknown=r"^Total for query: 0 jobs;"),
            Question(
                command=("condor_q", "{ids}", "-af:j", "JobStatus", "HoldReason"),
                line=r"^{id}\s+(?P<word>\d)(?:\s+(?P<reason>.*))?$",
            ),
            Question(
                command=("condor_history", "{job}", "-af:j", "JobStatus", "ExitCode"),
                line=r"^{id}\s+(?P<word>\d)",
                words=words(cancelled="3", ended="4"),
                only_ends=True,
            ),
        ),
        look="condor_q -better-analyze {id}",
        # the conditions that no machine meets, and how many machines they rule out
        comment=(
            ("condor_q", "-better-analyze", "{id}"),
            (
                r"^\[\d+\]\s+0\s+(\S.*)$"
                r"|^\s+([1-9]\d* are rejected by your job's requirements)"
                r"|^\s+([1-9]\d* reject your job because of their own requirements)"
                r"|^\s+([1-9]\d* match but are serving other users)"
            ),
        ),
        has_walltime=False,
        extra=(
            "batch_name = {name}",
            "executable = /bin/sh",
            "arguments = \"'{script}' $(Process)\"",
            "output = out-$(Cluster)_$(Process).txt",
            "error = out-$(Cluster)_$(Process).txt",
            "log = log-$(Cluster).txt",
            "should_transfer_files = NO",
            "max_materialize = {limit}",
        ),
        silent=("initialdir = /", "output = /dev/null", "error = /dev/null", "log = /dev/null"),
        output="(?i:output|error|log)",
        quoting=(("'", "''"), ('"', '""'), ("$", "$(DOLLAR)")),
        rerun=(
            "on_exit_remove = (ExitBySignal == False && ExitCode != {again}) || NumJobStarts >= {starts}",
        ),
        again=75,
    ),
    required={"disk": "disk: 4GB (per job)"},
)

MOAB = batch_backend(
    "moab",
    "Moab",
    Scheduler(
        mark="#PBS",
        array="-t {name}.[{first}-{last}]%{limit}",
        index="${MOAB_JOBARRAYINDEX:-$PBS_ARRAYID}",
        element="{job}[{index}]",
        cancel="{job}[]",
        submitted=(r"([Mm]oab\.\d+)(?:\[\])?", r"(\d+)(?:\[\])?(?:\.[A-Za-z][\w.-]*)?"),
        naming=f"-N{_NAME}",
        named=Question(
            command=("checkjob", "{job}"),
            line=r"^job (?P<job>(?:[A-Za-z]\w*\.)?\d+).*\n(?:.*\n)*?AName: +(?P<name>.*)$",
        ),
        listing=("showq", "-u", "{user}"),
        line=r"^(?P<id>(?:[Mm]oab\.)?\d+(?:\[\d+\])?)(?![\d\[])\S*\s+\S+\s+(?P<word>[A-Z]\w+)\s",
        words=words(
            waiting="Idle",
            running="Running Starting",
            held="Deferred Hold BatchHold UserHold",
            ended="Completed",
            cancelled="Removed",
            evicted="Vacated",
        ),
        questions=(
            Question(
                command=("checkjob", "{id}"), line=r"^State:\s+(?P<word>\w+)", unknown="invalid job specified"
            ),
        ),
        look="checkjob {id}",
        comment=(
            ("checkjob", "{id}"),
            r"^(?:(?:NOTE|BLOCK MSG|Message\[\d+\]):?\s+|(?=cannot select job|job cannot run|job is deferred))(\S.*)$",
        ),
        shell_line="-S {shell}",
        extra=("-j oe",),
        expired=r"PBS: job killed: walltime \d+ exceeded limit",
    ),
)

OAR = batch_backend(
    "oar",
    "OAR",
    Scheduler(
        mark="#OAR",
        submit_by=SubmitBy.ARGUMENTS,
        array="--array {count}",
        index="$OAR_ARRAY_INDEX",
        element="",
        submitted=(r"OAR_JOB_ID=(\d+)",),
        naming=f"(?:-n|--name){_NAME}",
        named=Question(
            command=("oarstat", "-f", "-u", "{user}"),
            line=r"^Job_Id: (?P<job>\d+)\n(?:\s.*\n)*?\s+name = (?P<name>.*)$",
        ),
        array_of_one=False,
        listing=("oarstat", "-u", "{user}"),
        line=r"^(?P<id>\d+)\s+(?P<word>[A-Z])\s+\S+\s+\S+\s+(?P<reason>.*)$",
        words=words(waiting="W t L", running="R F S", held="H", failed="E", ended="T"),
        # its database forgets no job: the state stands there in a word that begins with the letter of the list
        questions=(Question(command=("oarstat", "-f", "-j", "{id}"), line=r"^\s*state = (?P<word>\w+)"),),
        look="oarstat -fj {id}",
        # the listing cuts none, but may have none
        comment=(("oarstat", "-f", "-j", "{id}"), r"^\s*message = (.+)$"),
        minutes_last=True,
        output="-[OE]|--stdout|--stderr",
        # OARJob ignores log_directory
        worker_logs=("-O {folder}/OAR.%jobid%.out", "-E {folder}/OAR.%jobid%.err"),
        silent=("-d /", "-O /dev/null", "-E /dev/null"),
        rerun=("-t idempotent",),
        again=99,
    ),
)

SCHEDULERS = (SLURM, PBS, SGE, LSF, HTCONDOR, MOAB, OAR)

"""What a scheduler's list says of jobs and of the elements of arrays, read by one pattern."""

from contextlib import nullcontext

import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.backends.scheduler import Scheduler
from espnet3.parallel.detached.states import JobState

SCHEDULERS = {name: row.scheduler for name, row in BACKENDS.items() if row.scheduler is not None}
# a scheduler's list, as it prints it; behind an arrow: id, word, state as a job/as a shard, node, reason
LISTS = {
    "sge": """\
job-ID  prior   name       user   state submit/start at     queue    slots ja-task-ID
--------------------------------------------------------------------------------
      4 0.55500 dask-worke root   r     11/21/2026 21:00:00 all.q@n1              2 => 4 r RUNNING/running n1
      5 0.55500 espnet3-ru root   r     11/21/2026 21:00:00 all.q@localhost       1 1 => 5.1 r RUNNING/running localhost
      5 0.55500 espnet3-ru root   qw    11/21/2026 21:00:00                       1 2 => 5.2 qw WAITING/pending
      6 0.00000 dask-worke root   qw    11/21/2026 21:00:00                       8 => 6 qw WAITING/pending
      7 0.55500 espnet3-ru root   Eqw   11/21/2026 21:00:00                       1 12 => 7.12 Eqw HELD/lost
""",
    "slurm": """\
7_0|RUNNING|None|n1 => 7_0 RUNNING RUNNING/running n1
7_1|PENDING|JobArrayTaskLimit| => 7_1 PENDING WAITING/pending JobArrayTaskLimit
7_[2-9%4]|PENDING|JobArrayTaskLimit|
8_2|TIMEOUT|TimeLimit|n2 => 8_2 TIMEOUT EVICTED/timeout n2 TimeLimit
9|RUNNING|None|n[1-2] => 9 RUNNING RUNNING/running n[1-2]
8_3|NODE_FAIL||n3 => 8_3 NODE_FAIL EVICTED/node_fail n3
""",
    "pbs": """\
host:
                                                            Req'd  Req'd   Elap
Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time
--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----
17[].host       root     batch    run        --       1   4    8gb 04:00 B 00:01 => 17[] B RUNNING/running
17[0].host      root     batch    run        100      1   4    8gb 04:00 R 00:01 => 17[0] R RUNNING/running
17[1].host      root     batch    run        --       1   4    8gb 04:00 Q -- => 17[1] Q WAITING/pending
18.host         root     batch    dask       101      1   4    8gb 04:00 H -- => 18 H HELD/pending
""",
    "moab": """\
active jobs------------------------
JOBID              USERNAME      STATE PROCS   REMAINING            STARTTIME
17[1]              root        Running     1    00:10:00  Sat Nov 21 21:00:00 => 17[1] Running RUNNING/running
18*                root        Running     1    00:10:00  Sat Nov 21 21:00:00 => 18 Running RUNNING/running
1 active job
eligible jobs----------------------
17[2]              root           Idle     1    00:10:00  Sat Nov 21 21:00:00 => 17[2] Idle WAITING/pending
""",
    "lsf": """\
11|0|RUN|n1 => 11 RUN RUNNING/running n1
12|1|RUN|4*n2 => 12[1] RUN RUNNING/running 4*n2
12|2|PEND|- => 12[2] PEND WAITING/pending
12|30|EXIT|n1 => 12[30] EXIT FAILED/lost n1
""",
    "htcondor": """\
3.0 2 slot1@n1 undefined => 3.0 2 RUNNING/running slot1@n1
3.1 5 undefined no disk => 3.1 5 HELD/pending no disk
3.2 3 undefined undefined => 3.2 3 EVICTED/running
""",
    "oar": """\
Job id    S User     Duration   System message
--------- - -------- ---------- ------------------------------------------------
12        R root        0:00:01 R=1,W=0:10:0,J=B => 12 R RUNNING/running R=1,W=0:10:0,J=B
13        W root        0:00:00 R=1,W=0:10:0,J=B => 13 W WAITING/pending R=1,W=0:10:0,J=B
14        E root        0:00:00 R=1 => 14 E FAILED/lost R=1
""",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read(name: str) -> None:
    """Jobs and elements of arrays are found by their ids, with state, reason and node; other lines are left out."""
    lines = [line.partition(" => ") for line in LISTS[name].splitlines()]
    views = SCHEDULERS[name].read("\n".join(line for line, _, _ in lines))
    told = []
    for job, view in views.items():
        states = f"{view.meaning.job.name}/{JobState(view.meaning.shard).value}"
        told.append(" ".join(filter(None, (job, view.word, states, view.node, view.reason))))
    assert told == [said for _, _, said in lines if said]


def test_a_line_cut_short_takes_nothing_from_the_next() -> None:
    """A line that lacks a field is left out, and the line after it is read as it is."""
    assert set(SCHEDULERS["slurm"].read("7_0|PENDING|Priority\n7_1|RUNNING|None|n1\n")) == {"7_1"}
    assert set(SCHEDULERS["pbs"].read("17[0].host\n18.host root batch run 1 1 4 8gb 04:00 R 00:01\n")) == {
        "18"
    }


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_the_id_of_an_element_can_be_taken_apart(scheduler: Scheduler) -> None:
    """Where elements have no id of their own, job and index are found in the id made of them."""
    assert scheduler.parts_of("7") == ("7", "")
    if scheduler.element:
        assert scheduler.parts_of(scheduler.element.format(job="7", index=12)) == ("7", "12")
    else:
        assert scheduler.submitted


# scheduler, job: the command that asks why it waits, the parts of the reason, and the answer
WHY = """
## sge 7.2: qstat -j 7
=> 11/21/2026 21:00:00 [1000:5]: can't chdir to /gone: No such file or directory
=> Job is in error state
==============================================================
job_number:                 7
error reason    1:          11/21/2026 21:00:00 [1000:5]: can't chdir to /gone: No such file or directory
scheduling info:            Job is in error state
## sge 7: qstat -j 7
=> queue instance "short.q@n1" dropped because it is full
=> (-l gpu=4) cannot run in queue "all.q" because job requests unknown resource (gpu)
=> PE "smp" offers only 0 slots
job_number:                 7
script_file:                job.sh
scheduling info:            queue instance "short.q@n1" dropped because it is full
                            (-l gpu=4) cannot run in queue "all.q" because job requests unknown resource (gpu)
                            PE "smp" offers only 0 slots
## htcondor 4.0: condor_q -better-analyze 4.0
=> TARGET.Memory >= RequestMemory
=> 2 are rejected by your job's requirements
-- Schedd: host : <127.0.0.1:9618?...
The Requirements expression for job 4.000 is

    (TARGET.Arch == "X86_64") && (TARGET.Memory >= RequestMemory)

The Requirements expression for job 4.000 reduces to these conditions:

         Slots
Step    Matched  Condition
-----  --------  ---------
[0]           2  TARGET.Arch == "X86_64"
[7]           0  TARGET.Memory >= RequestMemory

004.000:  Run analysis summary ignoring user priority.  Of 2 machines,
      2 are rejected by your job's requirements
      0 reject your job because of their own requirements
      0 match and are already running your jobs
      0 match but are serving other users
      0 are able to run your job
## lsf 7678[1]: bjobs -p 7678[1]
=> Queue's resource requirements not satisfied: 3 hosts
=> Not enough job slots: 1 host
JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME
7678    me      PEND  normal     host                    run[1]     Nov 21 13:08
 Queue's resource requirements not satisfied: 3 hosts;
 Not enough job slots: 1 host;
## moab 17: checkjob 17
=> job cannot run in partition base (insufficient procs available: 4 < 64)
job 17

State: Idle
Creds:  user:me  group:me
StartPriority:  1
NOTE:  job cannot run in partition base (insufficient procs available: 4 < 64)
## oar 12: oarstat -f -j 12
=> R=64,W=0:10:0,J=B (no enough resources)
Job_Id: 12
    state = Waiting
    message = R=64,W=0:10:0,J=B (no enough resources)
    queue = default
## pbs 7: qstat -f 7
=> Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)
Job Id: 7.host
    job_state = Q
    comment = Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4
\t T: 4)
    etime = Sat Nov 21 21:00:00 2026
"""


@pytest.mark.parametrize("case", WHY.split("## ")[1:], ids=lambda case: case.split(":")[0])
def test_why_a_job_waits_is_said_in_the_schedulers_words(case: str) -> None:
    """The comment is one line of what the scheduler says of the job; an answer without a reason gives none."""
    asked, *lines = case.splitlines()
    (name, element), command = asked.partition(": ")[0].split(), asked.partition(": ")[2]
    reason = "; ".join(line.removeprefix("=> ") for line in lines if line.startswith("=> "))
    scheduler = SCHEDULERS[name]
    assert " ".join(scheduler.ask_comment(element)) == command
    assert scheduler.read_comment("\n".join(line for line in lines if line[:3] != "=> ")) == reason
    assert scheduler.read_comment("State: Running\nerror: no such job\n") == ""


def test_a_long_comment_is_cut() -> None:
    """A site with hundreds of queues does not fill the screen."""
    said = "JOBID\n" + "".join(f" Reason number {n}: 1 host;\n" for n in range(500))
    assert len(SCHEDULERS["lsf"].read_comment(said)) < 600


# scheduler, how many were submitted, their ids <= what the submit command printed; none: it tells no id
SUBMITTED = r"""
slurm None 12 <= Submitted batch job 12
slurm 2 12_0 12_1 <= --> Verifying valid submit host (login7)...OK\nSubmitted batch job 12\n
slurm 1 12_0 <= Submitted batch job 12 on cluster blue
slurm None 12 <= Queue 3 is busy\n12;blue\n
pbs None 12 <= quota: 5 of 10\n12.pbs-server.example.org\n2048\n
pbs 2 12[0] 12[1] <= 12[].pbs01
pbs None 12 <= 12\n
sge None 12 <= Your job 12 ("dask-worker") has been submitted
sge 2 12.1 12.2 <= JSV 3: 1 slot\nYour job-array 12.1-2:1 ("a (b) 7") has been submitted\n
sge 2 12.1 12.2 <= 12.1-2:1
lsf 2 12[1] 12[2] <= MEMLIMIT set to 2048 MB\nJob <12> is submitted to default queue <normal>.\n
htcondor 2 12.0 12.1 <= Submitting job(s)..\n2 job(s) submitted to cluster 12.
moab 2 Moab.12[1] Moab.12[2] <= \nMoab.12\n
moab None 12 <= \n12\n
oar 2 12 13 <= [ADMISSION RULE] Set default walltime to 7200.\nOAR_JOB_ID=12\nOAR_JOB_ID=13\n
slurm 2 <= --> Verifying valid submit host (login7)...OK\n
slurm 2 <= Submitted batch job 12\nSubmitted batch job 13\n
lsf 2 <= MEMLIMIT set to 2048 MB
pbs 2 <= 3 jobs of yours are queued
oar 2 <= OAR_JOB_ID=12
htcondor 2 <= WARNING: 2 machines are down
"""


@pytest.mark.parametrize("line", SUBMITTED.strip().splitlines())
def test_the_ids_of_what_was_submitted_are_read(line: str) -> None:
    """Each scheduler's own line tells the id, whatever a site prints around it; one too many, or none, is an error."""
    expected, _, said = line.partition(" <= ")
    name, count, *ids = expected.split()
    with nullcontext() if ids else pytest.raises(ValueError, match="lines that tell the id"):
        found = SCHEDULERS[name].ids_in(said.replace("\\n", "\n"), None if count == "None" else int(count))
        assert found == ids

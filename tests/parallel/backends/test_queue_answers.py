"""What a scheduler's answer about one job says: listed, ended, no such job, or nothing."""

import os
import pwd
import re

import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.backends.scheduler import NO_SUCH_JOB, JobAnswer, of_user
from espnet3.parallel.jobs import commands
from espnet3.parallel.jobs.commands import Said, inquire

SCONTROL = """\
JobId=21 ArrayJobId=20 ArrayTaskId=1 JobName=espnet3-run
   UserId=someone(1000) GroupId=someone(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)

JobId=22 ArrayJobId=20 ArrayTaskId=2 JobName=espnet3-run
   UserId=someone(1000) GroupId=someone(1000) MCS_label=N/A
   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)

"""
QSTAT = """\
Job Id: 7[2].host
    Job_Name = run
    job_state = Q
    queue = workq
    comment = Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)
    etime = Sun Nov 22 10:00:00 2026

Job Id: 7[3].host
    Job_Name = run
    job_state = R

"""
QACCT = """\
==============================================================
jobnumber    5
taskid       2
"""
# scheduler, element, what is known, its note <= the answers to the questions, in order, with & between them
READ = r"""
slurm 20_1 LISTED RUNNING <= {SCONTROL}
slurm 20_2 ENDED NODE_FAIL: NodeDown <= {SCONTROL}
slurm 20_3 NO_SUCH_JOB <= {SCONTROL} & Job 20_3 not found\n
slurm 20_3 NOT_KNOWN <= {SCONTROL} &
slurm 20_3 NO_SUCH_JOB <= slurm_load_jobs error: Invalid job id specified
slurm 20_3 NOT_KNOWN <= slurm_load_jobs error: Unable to contact slurm controller
slurm 20_1 ENDED TIMEOUT <= Invalid job id specified & & 20_1|TIMEOUT\n20_10|FAILED\n
slurm 20_1 NOT_KNOWN <= & & 20_1|RUNNING\n
pbs 7[2] LISTED Q: Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4) <= {QSTAT}
pbs 7[3] LISTED R <= {QSTAT}
pbs 7[4] NO_SUCH_JOB <= {QSTAT}qstat: Unknown Job Id 7[4].host\n
pbs 7[4] NOT_KNOWN <= qstat: Unknown Job Id 7[44].host\n
pbs 7 NOT_KNOWN <= qstat: Unknown Job Id 7[4].host\n
pbs 7[4] ENDED finished <= qstat: 7[4].host Job has finished, use -x or -H to obtain\n
pbs 7[4] NOT_KNOWN <= Connection refused\nqstat: cannot connect to server host
sge 5.2 NO_SUCH_JOB <= Following jobs do not exist: \n5\n
sge 5.2 NOT_KNOWN <= Following jobs do not exist: \n55\n
sge 5.2 ENDED 0 <= & {QACCT}failed 0\nexit_status 1
sge 5.2 ENDED 37 <= & {QACCT}failed 37  : qmaster enforced h_rt limit\nexit_status 137
sge 5.2 NOT_KNOWN <= & {QACCT}failed 25  : rescheduling\nexit_status 0
sge 5.2 NOT_KNOWN <= & {QACCT}failed 0\nexit_status 99
lsf 9[2] LISTED RUN <= 9|2|RUN|n1\n9|22|EXIT|n1\n
lsf 9 LISTED RUN <= 9|0|RUN|n1\n
lsf 9[3] NO_SUCH_JOB <= Job <9[3]> is not found\n
htcondor 4.1 NO_SUCH_JOB <= Total for query: 0 jobs; 0 completed, 0 removed\n
htcondor 4.1 ENDED 3 <= Total for query: 10 jobs; 0 completed\n & & 4.1 3 undefined\n
htcondor 4.1 LISTED held (5): no disk <= & 4.1 5 no disk\n
moab 3[1] NO_SUCH_JOB <= ERROR:  invalid job specified: 3[1]\n
moab 3[1] LISTED Idle <= job 3[1]\n\nState: Idle\n
oar 12 ENDED Terminated <= Job_Id: 12\n    state = Terminated\n    exit_code = 0\n
oar 12 LISTED toLaunch <= Job_Id: 12\n    state = toLaunch\n
"""


def answers(name: str, element: str, *said: str) -> JobAnswer:
    """Return what a scheduler's answers to its questions, in order, say about an element."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None and len(said) <= len(scheduler.questions)
    place = scheduler.parts_of(element)
    asked = [question.commands({element: place})[0][0] for question in scheduler.questions]
    texts = dict(zip(map(tuple, asked), said, strict=False))

    def ask(command: list[str]) -> Said:
        return Said("", 0, texts.get(tuple(command), ""), "")

    return inquire(scheduler, ask, {element: place})[element]


@pytest.mark.parametrize("line", READ.strip().splitlines())
def test_an_answer_is_read(line: str) -> None:
    """Only words about this very job count; an error, or an answer about another job, says nothing."""
    expected, _, printed = line.partition(" <= ")
    name, element, known, *note = expected.split(" ", 3)
    for shown, text in (("\\n", "\n"), ("{SCONTROL}", SCONTROL), ("{QSTAT}", QSTAT), ("{QACCT}", QACCT)):
        printed = printed.replace(shown, text)
    answer = answers(name, element, *map(str.lstrip, re.split(r" ?&", printed)))
    kind = {True: "LISTED", False: "ENDED", None: "NOT_KNOWN"}[answer and answer.meaning.is_alive]
    assert ("NO_SUCH_JOB" if answer is NO_SUCH_JOB else kind) == known
    assert ("" if answer is None else answer.note) == "".join(note)


@pytest.mark.parametrize("name", [name for name, row in BACKENDS.items() if row.scheduler is not None])
def test_an_empty_answer_is_no_answer(name: str) -> None:
    """Every scheduler has questions, and nothing printed means nothing known."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None and scheduler.questions
    element = scheduler.element.format(job="7", index=1) if scheduler.element else "7"
    assert answers(name, element, *["" for _ in scheduler.questions]) is None


def test_an_element_that_is_still_to_be_made_is_listed() -> None:
    """HTCondor's list of factories gives the index from which on it has made no elements."""
    condor = BACKENDS["htcondor"].scheduler
    assert condor is not None
    said = {"-factory": "4 2\n5 undefined\n", "RemoteHost": "4.0 2 slot1@n1 undefined\n"}

    def ask(command: list[str]) -> Said:
        return Said("", 0, "".join(text for word, text in said.items() if word in command), "")

    _, known = commands.answers(condor, ask, ["4.0", "4.1", "4.2", "5.0"])
    assert [view and view.meaning.is_alive for view in known.values()] == [True, None, True, None]


def test_the_queue_is_asked_for_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOGNAME and USER of another user, as sudo leaves them, change nothing."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    slurm = BACKENDS["slurm"].scheduler
    assert slurm is not None
    query = of_user(slurm.listing)
    assert query[query.index("-u") + 1] == pwd.getpwuid(os.getuid()).pw_name

"""What a scheduler's answer about one job says: listed, ended, no such job, or nothing."""

import os
import pwd

import pytest

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.backends.queue_answers import JobAnswer, Known, submitter, together

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
failed       {failed}
exit_status  {code}
"""


def answers(name: str, element: str, *said: str) -> JobAnswer:
    """Return what a scheduler's answers to its questions, in order, say about an element."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None and len(said) <= len(scheduler.questions)
    place = scheduler.parts_of(element)
    pairs = zip(scheduler.questions, said, strict=False)
    return together([question.read(element, place, text, scheduler.words) for question, text in pairs])


@pytest.mark.parametrize(
    ("name", "element", "said", "known", "note"),
    [
        ("slurm", "20_1", [SCONTROL], Known.LISTED, "RUNNING"),
        ("slurm", "20_2", [SCONTROL], Known.ENDED, "NODE_FAIL: NodeDown"),
        ("slurm", "20_3", [SCONTROL, "Job 20_3 not found\n"], Known.NO_SUCH_JOB, ""),
        ("slurm", "20_3", [SCONTROL, ""], Known.NOT_KNOWN, ""),
        ("slurm", "20_3", ["slurm_load_jobs error: Invalid job id specified"], Known.NO_SUCH_JOB, ""),
        (
            "slurm",
            "20_3",
            ["slurm_load_jobs error: Unable to contact slurm controller"],
            Known.NOT_KNOWN,
            "",
        ),
        (
            "slurm",
            "20_1",
            ["Invalid job id specified", "", "20_1|TIMEOUT\n20_10|FAILED\n"],
            Known.ENDED,
            "TIMEOUT",
        ),
        ("slurm", "20_1", ["", "", "20_1|RUNNING\n"], Known.NOT_KNOWN, ""),
        (
            "pbs",
            "7[2]",
            [QSTAT],
            Known.LISTED,
            "Q: Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 4 T: 4)",
        ),
        ("pbs", "7[3]", [QSTAT], Known.LISTED, "R"),
        ("pbs", "7[4]", [QSTAT + "qstat: Unknown Job Id 7[4].host\n"], Known.NO_SUCH_JOB, ""),
        ("pbs", "7[4]", ["qstat: Unknown Job Id 7[44].host\n"], Known.NOT_KNOWN, ""),
        ("pbs", "7", ["qstat: Unknown Job Id 7[4].host\n"], Known.NOT_KNOWN, ""),
        (
            "pbs",
            "7[4]",
            ["qstat: 7[4].host Job has finished, use -x or -H to obtain\n"],
            Known.ENDED,
            "finished",
        ),
        ("pbs", "7[4]", ["Connection refused\nqstat: cannot connect to server host"], Known.NOT_KNOWN, ""),
        ("sge", "5.2", ["Following jobs do not exist: \n5\n"], Known.NO_SUCH_JOB, ""),
        ("sge", "5.2", ["Following jobs do not exist: \n55\n"], Known.NOT_KNOWN, ""),
        ("sge", "5.2", ["", QACCT.format(failed="0", code=1)], Known.ENDED, "0"),
        (
            "sge",
            "5.2",
            ["", QACCT.format(failed="37  : qmaster enforced h_rt limit", code=137)],
            Known.ENDED,
            "37",
        ),
        ("sge", "5.2", ["", QACCT.format(failed="25  : rescheduling", code=0)], Known.NOT_KNOWN, ""),
        ("sge", "5.2", ["", QACCT.format(failed="0", code=99)], Known.NOT_KNOWN, ""),
        ("lsf", "9[2]", ["9|2|RUN|n1\n9|22|EXIT|n1\n"], Known.LISTED, "RUN"),
        ("lsf", "9", ["9|0|RUN|n1\n"], Known.LISTED, "RUN"),
        ("lsf", "9[3]", ["Job <9[3]> is not found\n"], Known.NO_SUCH_JOB, ""),
        ("htcondor", "4.1", ["Total for query: 0 jobs; 0 completed, 0 removed\n"], Known.NO_SUCH_JOB, ""),
        (
            "htcondor",
            "4.1",
            ["Total for query: 10 jobs; 0 completed\n", "", "4.1 3 undefined\n"],
            Known.ENDED,
            "3",
        ),
        ("htcondor", "4.1", ["", "4.1 5 no disk\n"], Known.LISTED, "held (5): no disk"),
        ("moab", "3[1]", ["ERROR:  invalid job specified: 3[1]\n"], Known.NO_SUCH_JOB, ""),
        ("moab", "3[1]", ["job 3[1]\n\nState: Idle\n"], Known.LISTED, "Idle"),
        ("oar", "12", ["Job_Id: 12\n    state = Terminated\n    exit_code = 0\n"], Known.ENDED, "Terminated"),
        ("oar", "12", ["Job_Id: 12\n    state = toLaunch\n"], Known.LISTED, "toLaunch"),
    ],
)
def test_an_answer_is_read(name: str, element: str, said: list[str], known: Known, note: str) -> None:
    """Only words about this very job count; an error, or an answer about another job, says nothing."""
    answer = answers(name, element, *said)
    assert answer.known is known
    assert ("" if answer.view is None else answer.view.note) == note


@pytest.mark.parametrize("name", [name for name, row in BACKENDS.items() if row.scheduler is not None])
def test_an_empty_answer_is_no_answer(name: str) -> None:
    """Every scheduler has questions, and nothing printed means nothing known."""
    scheduler = BACKENDS[name].scheduler
    assert scheduler is not None and scheduler.questions
    element = scheduler.element.format(job="7", index=1) if scheduler.element else "7"
    assert answers(name, element, *["" for _ in scheduler.questions]).known is Known.NOT_KNOWN


def test_an_element_that_is_still_to_be_made_is_listed() -> None:
    """HTCondor's list of factories gives the index from which on it has made no elements."""
    condor = BACKENDS["htcondor"].scheduler
    assert condor is not None
    assert condor.read_to_come("4 2\n5 undefined\n") == {"4": 2}
    assert condor.query_to_come()[:3] == ["condor_q", submitter(), "-factory"]


def test_the_queue_is_asked_for_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOGNAME and USER of another user, as sudo leaves them, change nothing."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    slurm = BACKENDS["slurm"].scheduler
    assert slurm is not None
    query = slurm.query()
    assert query[query.index("-u") + 1] == pwd.getpwuid(os.getuid()).pw_name

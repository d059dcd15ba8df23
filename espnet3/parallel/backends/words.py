"""What schedulers call the states of a job, and what each word means: one table for waiting drivers and detached runs.

A driver's keeper asks whether a job can still bring a worker; a detached run asks what became of a shard. The same word
answers both. A word stands for all that begin with it; one that is not listed means that the job waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class JobState(Enum):
    """Where a job is, in the words of every scheduler; the value completes "job 7 ..."."""

    WAITING = "waits in the queue"
    RUNNING = "runs"
    HELD = "is held and will not start by itself"
    FAILED = "has failed"
    EVICTED = "was ended by the scheduler (walltime, preemption, a lost node, or cancelled)"
    ENDED = "has ended"

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or will run."""
        return self in (JobState.FAILED, JobState.EVICTED, JobState.ENDED)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a scheduler's word means.

    Attributes:
        job: For a job of workers.
        shard: For a job of a detached run: a value of its `JobState`.
    """

    job: JobState
    shard: str


Words = Mapping[str, Meaning]

WAITING = Meaning(JobState.WAITING, "pending")
RUNNING = Meaning(JobState.RUNNING, "running")
HELD = Meaning(JobState.HELD, "pending")
STUCK = Meaning(JobState.HELD, "lost")  # it could not be started, and stays in the queue
LEAVING = Meaning(JobState.EVICTED, "running")  # removed, and listed until its process is gone
FAILED = Meaning(JobState.FAILED, "lost")
OUT_OF_MEMORY = Meaning(JobState.FAILED, "out_of_memory")
ENDED = Meaning(JobState.ENDED, "lost")
EVICTED = Meaning(JobState.EVICTED, "lost")
TIMEOUT = Meaning(JobState.EVICTED, "timeout")
PREEMPTED = Meaning(JobState.EVICTED, "preempted")
NODE_FAIL = Meaning(JobState.EVICTED, "node_fail")
CANCELLED = Meaning(JobState.EVICTED, "cancelled")


def words(*lines: tuple[Meaning, str]) -> Words:
    """Return a scheduler's words, given as lines of a meaning and the words that have it."""
    return {word: meaning for meaning, listed in lines for word in listed.split()}


def of_shards(table: Words) -> dict[str, str]:
    """Return what a scheduler's words mean for a detached run."""
    return {word: meaning.shard for word, meaning in table.items()}


SLURM = words(
    (WAITING, "PENDING CONFIGURING REQUEUE"),
    (RUNNING, "RUNNING COMPLETING STAGE_OUT SUSPENDED STOPPED RESIZING SIGNALING"),
    (HELD, "REQUEUE_HOLD SPECIAL_EXIT"),
    (ENDED, "COMPLETED"),
    (FAILED, "FAILED BOOT_FAIL DEADLINE"),
    (OUT_OF_MEMORY, "OUT_OF_MEMORY"),
    (TIMEOUT, "TIMEOUT"),
    (PREEMPTED, "PREEMPTED"),
    (NODE_FAIL, "NODE_FAIL"),
    (CANCELLED, "CANCELLED"),
    (EVICTED, "REVOKED"),
)
PBS = words((WAITING, "Q W T"), (RUNNING, "R E B S U"), (HELD, "H"), (ENDED, "C F X"))
MOAB = words((WAITING, "Idle"), (RUNNING, "Running Starting"), (HELD, "Deferred Hold BatchHold UserHold"))
SGE = words((WAITING, "qw hRwq Rq"), (RUNNING, "r t R s S T d"), (HELD, "hqw hRqw"), (STUCK, "E"))
LSF = words(
    (WAITING, "PEND WAIT"),
    (RUNNING, "RUN USUSP SSUSP"),
    (HELD, "PSUSP"),
    (ENDED, "DONE"),
    (FAILED, "EXIT ZOMBI"),
)
OAR = words((WAITING, "W t L"), (RUNNING, "R F S"), (HELD, "H"), (FAILED, "E"), (ENDED, "T"))
HTCONDOR = words((WAITING, "1"), (RUNNING, "2 6 7"), (LEAVING, "3"), (ENDED, "4"), (HELD, "5"))

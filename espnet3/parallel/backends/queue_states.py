"""The meaning of a job's state in a scheduler's queue, for a driver that waits for workers and for a detached run.

A driver asks whether a job can still bring a worker; a detached run asks what became of a shard. The scheduler's word
for the state answers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class QueueState(Enum):
    """Where a job of workers is; the value completes the sentence "job 7 ..."."""

    WAITING = "waits in the queue"
    RUNNING = "runs"
    HELD = "is held and will not start by itself"
    FAILED = "has failed"
    EVICTED = "was ended by the scheduler (walltime, preemption, a lost node, or cancelled)"
    ENDED = "has ended"

    @property
    def is_over(self) -> bool:
        """Return whether nothing of the job runs or will run."""
        return self in (QueueState.FAILED, QueueState.EVICTED, QueueState.ENDED)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a scheduler's word for a state."""

    job: QueueState  # for a job that holds workers of a driver
    shard: str  # for a job that runs a shard of a detached run: the value of its `JobState`

    @property
    def is_alive(self) -> bool:
        """Return whether a job in this state may still write."""
        return self.shard in ("pending", "running")


Words = Mapping[str, Meaning]

WAITING = Meaning(QueueState.WAITING, "pending")
RUNNING = Meaning(QueueState.RUNNING, "running")
HELD = Meaning(QueueState.HELD, "pending")
STUCK = Meaning(QueueState.HELD, "lost")  # it could not be started, and stays in the queue
LEAVING = Meaning(QueueState.EVICTED, "running")  # removed, and listed until its process is gone
FAILED = Meaning(QueueState.FAILED, "lost")
OUT_OF_MEMORY = Meaning(QueueState.FAILED, "out_of_memory")
ENDED = Meaning(QueueState.ENDED, "lost")
EVICTED = Meaning(QueueState.EVICTED, "lost")
TIMEOUT = Meaning(QueueState.EVICTED, "timeout")
PREEMPTED = Meaning(QueueState.EVICTED, "preempted")
NODE_FAIL = Meaning(QueueState.EVICTED, "node_fail")
CANCELLED = Meaning(QueueState.EVICTED, "cancelled")


def words(*lines: tuple[Meaning, str]) -> Words:
    """Make the mapping of a scheduler's words to their meanings from pairs of a meaning and its words.

    A word stands for every word that begins with it.
    """
    return {word: meaning for meaning, listed in lines for word in listed.split()}

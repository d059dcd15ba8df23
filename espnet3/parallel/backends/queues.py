"""What a scheduler's queue says about jobs: one query for all of them, read by one pattern.

A `Queue` is part of a scheduler's row. Reading is a pure function of the command's output, so it is
tested against recorded output and against the real command alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from espnet3.parallel.backends import words
from espnet3.parallel.backends.words import JobState, Words


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as the queue shows it.

    Attributes:
        state: What that means.
        word: The scheduler's own word for it, such as "PENDING"; empty if the job is no longer listed.
        reason: Why it waits or is held, where the scheduler says so.
        node: Where it runs or ran, where the scheduler says so.
    """

    state: JobState
    word: str = ""
    reason: str = ""
    node: str = ""

    def __str__(self) -> str:
        word = f" ({self.word})" if self.word else ""
        reason = f": {self.reason}" if self.reason else ""
        node = f" on {self.node}" if self.node else ""
        return f"{self.state.value}{word}{node}{reason}"


GONE = JobView(JobState.ENDED)


@dataclass(frozen=True, slots=True)
class Queue:
    """How a scheduler is asked about jobs.

    Attributes:
        command: Lists the jobs of a user, recently ended ones too where it can; "{user}" is replaced.
        line: Pattern of one listed job, with the groups `id` and `word`, and perhaps `reason`, `node`.
        words: The scheduler's words for states, a table of `words`.
        look: What a person types to learn more about a job; "{id}" is replaced.
        avoid: Directive that keeps a job from nodes; "{nodes}" is replaced. Empty: it has none we use.
        joint: What stands between the nodes of `avoid`.
    """

    command: tuple[str, ...]
    line: str
    words: Words = field(default_factory=dict)
    look: str = ""
    avoid: str = ""
    joint: str = ","

    def query(self, user: str) -> list[str]:
        """Return the command that lists a user's jobs."""
        return [part.replace("{user}", user) for part in self.command]

    def read(self, output: str) -> dict[str, JobView]:
        """Return the listed jobs by id."""
        views = {}
        for found in re.finditer(self.line, output, re.MULTILINE):
            parts = {name: (text or "").strip() for name, text in found.groupdict().items()}
            views[parts["id"]] = JobView(
                self._state(parts["word"]),
                parts["word"],
                _said(parts.get("reason")),
                _said(parts.get("node")),
            )
        return views

    def _state(self, word: str) -> JobState:
        best = max((start for start in self.words if word.startswith(start)), key=len, default=None)
        return JobState.WAITING if best is None else self.words[best].job


def _said(text: str | None) -> str:
    return "" if text is None or text in ("None", "(null)", "undefined", "-", "n/a") else text


SLURM = Queue(
    command=("squeue", "-h", "-t", "all", "-u", "{user}", "-o", "%i|%T|%r|%N"),
    line=r"^(?P<id>[\d_]+)\|(?P<word>[^|]+)\|(?P<reason>[^|]*)\|(?P<node>.*)$",
    words=words.SLURM,
    look="scontrol show job {id}",
    avoid="--exclude={nodes}",
)
PBS = Queue(
    # what OpenPBS and Torque have in common: the wide table, whose last column but one is the state
    command=("qstat", "-u", "{user}"),
    line=r"^(?P<id>\d+)(?:\[\d*\])?\.?\S*\s+\S+\s+\S+\s+.*\s(?P<word>[A-Z])\s+[-:\d]+\s*$",
    words=words.PBS,
    look="qstat -f {id}",
)
MOAB = Queue(
    command=("showq", "-u", "{user}"),
    line=r"^(?P<id>\d+)\*?\s+\S+\s+(?P<word>[A-Z]\w+)\s",
    words=words.MOAB,
    look="checkjob {id}",
)
SGE = Queue(
    command=("qstat", "-u", "{user}"),
    line=r"^\s*(?P<id>\d+)\s+[\d.]+\s+\S+\s+\S+\s+(?P<word>\w+)\s+\S+\s+\S+\s+(?:\S+@(?P<node>\S+))?",
    words=words.SGE,
    look="qstat -j {id}",
    avoid="-l h=!({nodes})",
    joint="|",
)
LSF = Queue(
    command=("bjobs", "-a", "-noheader", "-u", "{user}", "-o", "jobid stat exec_host delimiter='|'"),
    line=r"^(?P<id>\d+)\|(?P<word>\w+)\|(?P<node>\S*)",
    words=words.LSF,
    look="bjobs -l {id}",
)
OAR = Queue(
    command=("oarstat", "-u", "{user}"),
    line=r"^(?P<id>\d+)\s+(?P<word>[A-Z])\s+\S+\s+\S+\s+(?P<reason>.*)$",
    words=words.OAR,
    look="oarstat -fj {id}",
)
HTCONDOR = Queue(
    command=("condor_q", "{user}", "-af:j", "JobStatus", "RemoteHost", "HoldReason"),
    line=r"^(?P<id>\d+\.\d+)\s+(?P<word>\d)\s+(?P<node>\S+)\s+(?P<reason>.*)$",
    words=words.HTCONDOR,
    look="condor_q -better-analyze {id}",
)

"""How each scheduler runs many jobs as one: the array directive, the index, and its elements in the queue.

An `Array` is part of a scheduler's row; it is facts alone. What is done with them is in
`espnet3.parallel.detached`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from espnet3.parallel.backends import words
from espnet3.parallel.backends.words import of_shards


@dataclass(frozen=True, slots=True)
class Array:
    """The job array of a scheduler.

    Attributes:
        directive: Asks for the elements `{first}` to `{last}`, of which there are `{count}`, `{limit}` at a
            time; `{name}` is the job's name.
        mark: What a directive's line begins with; empty: the scheduler reads no script (HTCondor).
        variable: The shell's expression for the index of the element that runs.
        element: An element's id as the queue lists it, from `{job}` and `{index}`; empty: each element has
            an id of its own, which the submission prints.
        query: Lists the elements of a user's jobs; `{user}` is replaced.
        line: Pattern of a listed element, with the groups `id` and `word`, and perhaps `note`.
        words: What the scheduler's words mean, by their beginning: a value of `JobState`.
        first: Index of the first element.
        cancel: What is given to the cancel command for a whole array.
        single: A job of one element: the directives instead of `directive`; None: as any other.
        extra: Further directives; what the scheduler itself prints goes to a name without a folder.
        printed: That name, from the `{job}` and the `{index}`; empty: it is not looked at.
        starved: Pattern of what is printed there where a job was killed for want of memory.
        site_limit: Prints the largest index the site allows, and the pattern that finds it.
        most: The largest index where the site does not say.
        rerun: Directives that let the scheduler queue an element again after preemption or a lost node.
        requeue: A command of the job itself that queues it again.
        again: The exit status of a job that asks to be queued again; 0: there is none.
        by_stdin: The script is given on standard input.
        as_arguments: The directives are given on the submit command's line, not read from the script.
        silent: Directives for a folder whose name the scheduler would expand; empty: it expands none.
        minutes_last: A walltime of two numbers is hours and minutes.
    """

    directive: str
    mark: str
    variable: str
    element: str
    query: tuple[str, ...]
    line: str
    words: Mapping[str, str] = field(default_factory=dict)
    first: int = 1
    cancel: str = "{job}"
    single: tuple[str, ...] | None = None
    extra: tuple[str, ...] = ()
    printed: str = ""
    starved: str = ""
    site_limit: tuple[tuple[str, ...], str] | None = None
    most: int = 1000
    rerun: tuple[str, ...] = ()
    requeue: str = ""
    again: int = 0
    by_stdin: bool = False
    as_arguments: bool = False
    silent: tuple[str, ...] = ()
    minutes_last: bool = False


SLURM = Array(
    directive="--array={first}-{last}%{limit}",
    mark="#SBATCH",
    variable="$SLURM_ARRAY_TASK_ID",
    element="{job}_{index}",
    query=("squeue", "-h", "-r", "-t", "all", "-u", "{user}", "-o", "%i|%T|%r"),
    line=r"^(?P<id>\d+_\d+)\|(?P<word>[^|]+)\|(?P<note>.*)$",
    words=of_shards(words.SLURM),
    first=0,
    extra=("-o out-%A_%a.txt",),
    printed="out-{job}_{index}.txt",
    # of jobacct_gather, whose kill the queue calls FAILED, and of the cgroup plugins
    starved=r"exceeded (?:job |step )?memory limit|oom[-_ ]kill|Out Of Memory",
    # the value is one more than the largest index
    site_limit=(("scontrol", "show", "config"), r"^MaxArraySize\s*=\s*(\d+)"),
    rerun=("--requeue",),
    requeue='scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
)
SGE = Array(
    directive="-t {first}-{last} -tc {limit}",
    mark="#$",
    variable="$SGE_TASK_ID",
    element="{job}.{index}",
    query=("qstat", "-g", "d", "-u", "{user}"),
    line=r"^\s*(?P<job>\d+)\s+[\d.]+\s+\S+\s+\S+\s+(?P<word>\w+)\s+\S+\s+\S+\s+.*?(?P<index>\d+)\s*$",
    words=of_shards(words.SGE),
    extra=("-S /bin/sh",),  # a queue's own shell may be csh
    rerun=("-r y",),
    again=99,
)
PBS = Array(
    directive="-J {first}-{last}%{limit}",
    mark="#PBS",
    variable="$PBS_ARRAY_INDEX",
    element="{job}[{index}]",
    query=("qstat", "-t", "-x", "-u", "{user}"),
    line=r"^(?P<id>\d+(?:\[\d+\])?)(?!\[)\S*\s.*\s(?P<word>[A-Z])\s+[-:\d]+\s*$",
    words=of_shards(words.PBS),
    first=0,
    cancel="{job}[]",
    single=(),
    extra=("-j oe",),
    rerun=("-r y",),
)
MOAB = Array(
    directive="-t {name}.[{first}-{last}]%{limit}",
    mark="#PBS",
    variable="${MOAB_JOBARRAYINDEX:-$PBS_ARRAYID}",
    element="{job}[{index}]",
    query=("showq", "-u", "{user}"),
    line=r"^(?P<id>\d+(?:\[\d+\])?)(?!\[)\S*\s+\S+\s+(?P<word>[A-Z]\w+)\s",
    words=of_shards(words.MOAB),
    cancel="{job}[]",
    extra=("-j oe",),
)
LSF = Array(
    directive='-J "{name}[{first}-{last}]%{limit}"',
    mark="#BSUB",
    variable="$LSB_JOBINDEX",
    element="{job}[{index}]",
    query=("bjobs", "-a", "-noheader", "-u", "{user}", "-o", "jobid jobindex stat delimiter='|'"),
    line=r"^(?P<job>\d+)\|(?P<index>\d+)\|(?P<word>\w+)",
    words=of_shards(words.LSF),
    extra=("-o out-%J_%I.txt",),
    printed="out-{job}_{index}.txt",
    starved="TERM_MEMLIMIT",
    rerun=("-r",),
    by_stdin=True,
    minutes_last=True,
)
OAR = Array(
    directive="--array {count}",
    mark="#OAR",
    variable="$OAR_ARRAY_INDEX",
    element="",
    query=("oarstat", "-u", "{user}"),
    line=r"^(?P<id>\d+)\s+(?P<word>[A-Z])\s+\S+\s+\S+\s+(?P<note>.*)$",
    words=of_shards(words.OAR),
    single=(),
    rerun=("-t idempotent",),
    again=99,
    as_arguments=True,
    silent=("-d /", "-O /dev/null", "-E /dev/null"),
    minutes_last=True,
)
HTCONDOR = Array(
    directive="queue {count}",
    mark="",
    variable="$1",
    element="{job}.{index}",
    query=("condor_q", "{user}", "-af:j", "JobStatus", "HoldReason"),
    line=r"^(?P<id>\d+\.\d+)\s+(?P<word>\d)\s+(?P<note>.*)$",
    words=of_shards(words.HTCONDOR),
    first=0,
    most=100_000,
    again=75,
    silent=("initialdir = /", "output = /dev/null", "error = /dev/null", "log = /dev/null"),
)

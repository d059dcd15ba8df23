"""One record for a batch scheduler: how jobs are submitted, listed and cancelled, and the formats it reads.

The record holds facts alone, as text and patterns. `clusters` uses them for the jobs of workers, `detached` for job
arrays. Reading a queue's output is a pure function, so recorded output and the real command test it alike.

A driver asks whether a job can still bring a worker; a detached run asks what became of a shard: the scheduler's word
for a job's state answers both (`Meaning`). A job that a listing leaves out is *not known*: a listing may be cut short,
stale or empty, or come from a server that has just started. Only a word for its end, or the scheduler's answer to a
question about this very job, says more.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from espnet3.parallel.errors import ConfigError

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+@\[\]-]*", re.ASCII)
_LONGEST = 500  # characters of a scheduler's comment: some explain each queue of a site
_IDS = "{ids}"  # the word of a question's command that stands for many ids
_AT_ONCE = 200  # ids in one command: the length of a command line has a limit


class Meaning(Enum):
    """The meaning of a scheduler's word for a state: the end of the sentence "job 7 ...", and a shard's `JobState`."""

    WAITING = "waits in the queue", "pending"
    RUNNING = "runs", "running"
    HELD = "is held and will not start by itself", "pending"
    FAILED = "has failed", "lost"
    EVICTED = "was ended by the scheduler (walltime, preemption, a lost node, or cancelled)", "lost"
    ENDED = "has ended", "lost"
    # for a driver, the one above with the same sentence
    STUCK = HELD[0], "lost"  # it could not be started, and stays in the queue
    LEAVING = EVICTED[0], "running"  # removed, and listed until its process is gone
    OUT_OF_MEMORY = FAILED[0], "out_of_memory"
    TIMEOUT = EVICTED[0], "timeout"
    PREEMPTED = EVICTED[0], "preempted"
    NODE_FAIL = EVICTED[0], "node_fail"
    CANCELLED = EVICTED[0], "cancelled"

    def __init__(self, sentence: str, shard: str) -> None:
        self.sentence = sentence
        self.shard = shard  # for a job that runs a shard of a detached run: the value of its `JobState`
        self.is_alive = shard in ("pending", "running")  # a job in this state may still write

    @property
    def job(self) -> Meaning:
        """Return the meaning for a job that holds workers of a driver."""
        return next(each for each in Meaning if each.sentence == self.sentence)

    @property
    def is_over(self) -> bool:
        """Return whether no worker of the job runs or will run."""
        return self.job in (Meaning.FAILED, Meaning.EVICTED, Meaning.ENDED)


Words = Mapping[str, Meaning]


def words(**listed: str) -> Words:
    """Make the mapping of a scheduler's words to meanings: `words(waiting="PENDING CONFIGURING", held="HOLD")`.

    A word stands for every word that begins with it.
    """
    return {word: Meaning[name.upper()] for name, text in listed.items() for word in text.split()}


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, or one element of a job array, as the queue lists it."""

    meaning: Meaning  # meaning of its state
    word: str = ""  # the scheduler's own word for it, such as "PENDING"; empty if the job is no longer listed
    reason: str = ""  # why it waits or is held, where the scheduler gives a reason
    node: str = ""  # where it runs or ran, where the scheduler names a node

    @property
    def note(self) -> str:
        """The scheduler's word and its reason, for a person."""
        word = f"held ({self.word})" if self.meaning is Meaning.HELD else self.word
        return f"{word}: {self.reason}" if self.reason else word

    def __str__(self) -> str:
        word = f" ({self.word})" if self.word else ""
        reason = f": {self.reason}" if self.reason else ""
        node = f" on {self.node}" if self.node else ""
        return f"{self.meaning.sentence}{word}{node}{reason}"


NEW = JobView(Meaning.WAITING)
NO_SUCH_JOB = JobView(Meaning.ENDED)  # the scheduler was asked for this very job, and says that there is none
# A job as the scheduler lists it, or says how it ended, or `NO_SUCH_JOB`; None: it has said nothing about it
JobAnswer = JobView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A command about jobs that a listing leaves out, and how its answer is read. Its exit status does not matter."""

    # `{ids}` stands for many jobs, `{id}` for one, `{job}` for a whole array (without any of its elements)
    command: tuple[str, ...]
    # pattern of its output about a known job, with `{id}`, `{job}` and `{index}`. Its groups are `word`, or `ended` for
    # another word, and perhaps `reason`. The last match counts. Empty: it only finds out that there is no such job
    line: str = ""
    words: Words | None = None  # meanings of the words; empty: those of the listing
    # pattern of what it prints, on either stream, of a job that is not there; empty: its answer never proves that
    unknown: str = ""
    only_ends: bool = False  # a job that it calls waiting or running may be gone: its end was missed, say

    def commands(self, elements: Mapping[str, tuple[str, str]]) -> list[tuple[list[str], list[str]]]:
        """Return the commands that ask about elements, each with the ids it asks about."""
        if _IDS in self.command:
            at = self.command.index(_IDS)
            ids = list(elements)
            parts = [ids[begin : begin + _AT_ONCE] for begin in range(0, len(ids), _AT_ONCE)]
            return [([*self.command[:at], *part, *self.command[at + 1 :]], part) for part in parts]
        asked: dict[tuple[str, ...], list[str]] = {}
        for element, (job, index) in elements.items():
            command = tuple(filled(part, element, job, index) for part in self.command)
            asked.setdefault(command, []).append(element)
        return [(list(command), ids) for command, ids in asked.items()]

    def is_open(self, known: JobAnswer) -> bool:
        """Return whether what is known of a job leaves this question open: "no such job" does so for its end."""
        return known is None or (known is NO_SUCH_JOB and self.only_ends)

    def read(self, element: str, place: tuple[str, str], said: str, listed: Words) -> JobAnswer:
        """Read the answer about an element."""
        names = (re.escape(element), *map(re.escape, place))
        if self.unknown and re.search(filled(self.unknown, *names), said, re.MULTILINE):
            return NO_SUCH_JOB
        found = list(re.finditer(filled(self.line, *names), said, re.MULTILINE)) if self.line else []
        if not found:
            return None
        parts = found[-1].groupdict()
        word = parts["word"] or parts["ended"]
        meaning = meaning_of(self.words or listed, word)
        if self.only_ends and meaning.is_alive:
            return None
        return JobView(meaning, word, given(parts.get("reason") or ""))


def filled(text: str, element: str, job: str, index: str) -> str:
    """Return a word or pattern of a question about one job; a pattern's own braces stay."""
    return text.replace("{id}", element).replace("{job}", job).replace("{index}", index)


def meaning_of(words: Words, word: str) -> Meaning:
    """Return the meaning of a scheduler's word; an unknown word means that the job waits."""
    known = max((start for start in words if word.startswith(start)), key=len, default=None)
    return Meaning.WAITING if known is None else words[known]


def given(text: str) -> str:
    """Return a field of a list, or "" for a scheduler's word for an empty field."""
    return "" if text.strip() in ("None", "(null)", "undefined", "-", "n/a") else text.strip()


def submitter() -> str:
    """Return the name by which a scheduler knows this process's user, or the number where no line of passwd has it.

    Not `getpass.getuser`, which believes LOGNAME: under sudo that is another user, without such jobs.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class SubmitBy(Enum):
    """How the submit command of a detached run gets the job script and its directives."""

    FILE = "the script's path is an argument; the directives are comments in it"
    STDIN = "the script is the standard input; the directives are comments in it"
    ARGUMENTS = "the script's path is an argument, and so is each directive"
    DESCRIPTION = "a file of `key = value` lines is submitted, which names the script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A batch scheduler. A *directive* is an option of its submit command, without the mark."""

    mark: str  # start of a directive's line in a script; empty where scripts have no directives
    submit_by: SubmitBy = SubmitBy.FILE  # how the submit command of a detached run gets the script

    # directive for an array of `{count}` elements, `{first}` to `{last}`, `{limit}` at a time, of jobs called `{name}`
    array: str
    index: str  # shell expression for the index of the element that runs
    # id of an element as the queue lists it, from `{job}` and `{index}`; empty: the submit command prints one for each
    element: str
    # patterns of the submit command's line with the id, in the order of trial: sites print lines of their own
    # around it, with numbers in them. Empty: dask-jobqueue's own pattern
    submitted: tuple[str, ...] = ()
    first: int = 1  # index of the first element
    most: int = 1000  # largest index of an element where the site does not set another
    # command that prints the number of elements the site allows in an array (0: any), and the pattern that finds it
    site_limit: tuple[tuple[str, ...], str] | None = None
    array_of_one: bool = True  # whether an array of one element is allowed
    # placeholders of a job's id in dask-jobqueue's names of output, and of an element's; empty: none is needed
    element_log: tuple[str, str] | None = None
    cancel: str = "{job}"  # argument of the cancel command for a whole array of the id `{job}`
    naming: str = ""  # pattern of a directive that names the job; its group is the name
    # asks for names of the jobs of `{user}`, or of given ones; groups of its line: `job` and `name`. None: it cannot
    named: Question | None = None
    elsewhere: str = ""  # pattern of a directive that sends a job where no other command finds it
    place: tuple[str, ...] = ()  # variables that send every command there, the usual one first

    # command that lists the jobs of `{user}`, with those that ended lately where it can
    listing: tuple[str, ...]
    no_jobs: str = ""  # pattern of a listing's message on standard error where an empty queue is an error
    # pattern of a listed job. Its groups are `id`, or `job` and perhaps `index`; `word`; perhaps `reason` and `node`
    line: str
    words: Words  # meanings of the words for states; an unknown word means that the job waits
    # command that lists the arrays of `{user}` whose elements the scheduler makes one after another, and the
    # pattern of a line, with the groups `job` and `next`: from this index on none has been made yet
    to_come: tuple[tuple[str, ...], str] | None = None
    # questions about jobs that the listing leaves out, in order. Without any, a job without a word of its end
    # stays unknown until it is cancelled
    questions: tuple[Question, ...] = ()
    look: str  # command for a person who wants to know more about the job `{id}`

    minutes_last: bool = False  # whether a walltime of two numbers has minutes last, rather than seconds
    writes_seconds: bool = True  # whether a walltime is written as HH:MM:SS, rather than as HH:MM
    unlimited: str = ""  # word for a walltime without an end; empty: the scheduler has none
    has_walltime: bool = True  # whether jobs have a walltime at all

    avoid: str = ""  # directive that keeps a job away from `{nodes}`; empty: none is used
    joint: str = ","  # separator of the nodes of `avoid`
    avoided: str = ""  # pattern of the same in a user's own directive, with a group of the nodes
    output: str = "-[oe]"  # pattern of the directives that name a file for output, without their value
    shell_line: str = ""  # directive that has the script run in `{shell}`; empty: that of its first line
    # directives that send a worker job's output to `{folder}`, where dask-jobqueue has no option for it
    worker_logs: tuple[str, ...] = ()
    # shell line by which a worker job sends its own output to a file in `{folder}` (quoted), where the
    # scheduler would deliver it after the job's end alone, perhaps to a folder that is gone
    worker_prints: str = ""
    # command that explains why the job `{id}` waits or is stuck, and a pattern: of each match the first group
    # that is not empty counts. None: the listing has the reason
    comment: tuple[tuple[str, ...], str] | None = None
    # directives of every job of a detached run; output goes to a file name without a folder, because no
    # scheduler reads every folder's name as it is. In a description, `{name}` is the job's name, `{script}`
    # the quoted path of the script and `{limit}` the number of elements at a time
    extra: tuple[str, ...] = ()
    replaces: str = ""  # beginning of the directive in dask-jobqueue's header that `array` takes the place of
    # directives that replace those of `extra` in a folder whose name the scheduler would expand; empty: it
    # expands none
    silent: tuple[str, ...] = ()
    quoting: tuple[tuple[str, str], ...] = ()  # texts and what replaces them in a path of a description

    starved: str = ""  # pattern of the line of a job's output that reports a kill for want of memory
    expired: str = ""  # pattern of the line of a job's output that reports a kill at the walltime
    # directives that have an element queued again after preemption or the loss of its node, or when it exits
    # with `{again}`, up to `{starts}` starts
    rerun: tuple[str, ...] = ()
    requeue: str = ""  # shell command by which a running element requeues itself
    again: int = 0  # exit status by which an element asks to be requeued; 0: none

    def array_directive(self, name: str, count: int, limit: int) -> str:
        """Return the directive for an array of `count` elements, `limit` of them at a time, of jobs called `name`."""
        numbers = {"first": self.first, "last": self.first + count - 1, "count": count, "limit": limit}
        return self.array.format(**numbers, name=_plain(name))  # Moab takes no other letters before an array

    def ids_in(self, said: str, count: int | None = None, otherwise: str = "") -> list[str]:
        """Return the ids of what was submitted, in order."""
        lines = said if self.submitted else "\n".join(re.findall(otherwise, said)[:1])
        patterns = self.submitted or (r"(.+)",)
        tries = (re.findall(rf"^[^\S\n]*{one}[^\S\n]*\r?$", lines, re.MULTILINE) for one in patterns)
        found = list(dict.fromkeys(next(filter(None, tries), [])))
        if len(found) != (1 if self.element else count or 1):
            raise ValueError(f"it has {len(found) or 'no'} lines that tell the id of a job")
        if count is None or not self.element:
            return found
        return [self.element.format(job=found[0], index=self.first + at) for at in range(count)]

    def names_in(self, script: str) -> list[str]:
        """Return the jobs' names in a script's directives; empty: the scheduler names them after the script."""
        lines = "\n".join(line for line in script.splitlines() if line.startswith(self.mark))
        found = re.findall(rf"(?m:^|\s)[\"']?{self.naming}", lines) if self.naming else []
        return [name.strip("\"'").split("[")[0] for name in found]

    def foreign(self, said: str, jobs: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the name of each of these jobs that the queue calls otherwise than it was submitted."""
        assert self.named is not None
        found = re.finditer(self.named.line, said, re.MULTILINE)
        told = {each["job"]: each["name"].strip() for each in found}
        called = {job: told.get(number_of(job), "") for job, own in jobs.items() if own}
        return {job: name for job, name in called.items() if name and not _is_of(name, jobs[job])}

    @property
    def usual_array(self) -> int:
        """The number of elements that an array may have where the site does not set another."""
        return self.most - self.first + 1

    def read(self, output: str) -> dict[str, JobView]:
        """Return the listed jobs and elements by id; others may have ended, or be unknown."""
        views: dict[str, JobView] = {}
        for line in output.splitlines():  # a pattern that met a line cut short would go on in the next one
            found = re.match(self.line, line)
            if found is None:
                continue
            parts = {name: (text or "").strip() for name, text in found.groupdict().items()}
            one = self.element.format(**parts) if parts.get("index") else parts.get("id") or parts["job"]
            views[one] = JobView(
                meaning_of(self.words, parts["word"]),
                parts["word"],
                given(parts.get("reason", "")),
                given(parts.get("node", "")),
            )
        return views

    def ask_comment(self, element: str) -> list[str]:
        """Return the command that asks why a job or an element waits."""
        assert self.comment is not None
        return [filled(part, element, *self.parts_of(element)) for part in self.comment[0]]

    def read_comment(self, said: str) -> str:
        """Return why a job waits, as one line; empty: the answer does not say."""
        assert self.comment is not None
        matches = re.finditer(self.comment[1], said, re.MULTILINE)
        found = [next(filter(None, each.groups()), "") for each in matches]
        said = "; ".join(dict.fromkeys(filter(None, map(_one_line, found))))
        return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."

    def parts_of(self, element: str) -> tuple[str, str]:
        """Return the job and the index of an element's id; without an array the index is empty."""
        pattern = re.escape(self.element).replace(r"\{job\}", r"(.+)").replace(r"\{index\}", r"(\d+)")
        found = re.fullmatch(pattern, element)
        return (element, "") if found is None else (found[1], found[2])


def number_of(job: str) -> str:
    """Return the id of a whole job, or of the whole array that an element is in, without its index and its server."""
    found = re.match(r"(?:[A-Za-z]\w*\.)?\d+", job)
    return job if found is None else found[0]


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _is_of(told: str, own: Sequence[str]) -> bool:
    name = _plain(told.removeprefix("*"))
    return any(one.endswith(name) if told.startswith("*") else one == name for one in map(_plain, own))


def _one_line(text: str) -> str:
    lines = text.replace("\n\t", "").splitlines()
    return "; ".join(" ".join(line.split()).rstrip(";") for line in lines if line.strip())


def of_user(command: Sequence[str]) -> list[str]:
    """Return a command with the name of this process's user in the place of `{user}`."""
    name = submitter()
    return [part.replace("{user}", name) for part in command]


def check_ids(jobs: Mapping[str, str], parts: int = 1) -> None:
    """Raise unless jobs' ids, as a run folder says them, can be words of a command and parts of a file's name."""
    for shard, job in jobs.items():
        words = job.split("/", parts - 1) if isinstance(job, str) else [""]
        safe = all(_ID.fullmatch(word) and ".." not in word for word in words)
        if not (safe and shard.isascii() and shard.isdigit()):
            raise ConfigError(
                f"the run folder is damaged: {job!r} is not the id of a job, or {shard!r} not a shard"
            )

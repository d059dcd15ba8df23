"""A scheduler's answer about a job: listed, ended, no such job, or nothing that can be relied on.

A job that a listing leaves out is *not known*: a listing may be cut short, stale or empty, or come from a server that
has just started. Only a word for its end, or the scheduler's answer to a question about this very job, says more.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from espnet3.parallel.backends.queue_states import ENDED, HELD, WAITING, Meaning, QueueState, Words

_IDS = "{ids}"  # the word of a question's command that stands for many ids
_AT_ONCE = 200  # ids in one command: the length of a command line has a limit


@dataclass(frozen=True, slots=True)
class JobView:
    """One job, or one element of a job array, as the queue lists it."""

    meaning: Meaning  # meaning of its state
    # the scheduler's own word for the state, such as "PENDING"; empty if the job is no longer listed
    word: str = ""
    reason: str = ""  # why it waits or is held, where the scheduler gives a reason
    node: str = ""  # where it runs or ran, where the scheduler names a node

    @property
    def state(self) -> QueueState:
        """The meaning of the state for a job that holds workers."""
        return self.meaning.job

    @property
    def note(self) -> str:
        """The scheduler's word and its reason, for a person."""
        word = f"held ({self.word})" if self.meaning == HELD else self.word
        return f"{word}: {self.reason}" if self.reason else word

    def __str__(self) -> str:
        word = f" ({self.word})" if self.word else ""
        reason = f": {self.reason}" if self.reason else ""
        node = f" on {self.node}" if self.node else ""
        return f"{self.state.value}{word}{node}{reason}"


GONE = JobView(ENDED)
NEW = JobView(WAITING)


class Known(Enum):
    """The knowledge of a job, the surest first; the value completes the sentence "the scheduler ..."."""

    LISTED = "lists it as waiting or running"
    ENDED = "says how it ended"
    NO_SUCH_JOB = "was asked for this job, and says that there is none"
    NOT_KNOWN = "has said nothing about it"


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """A scheduler's answer about one job."""

    known: Known  # kind of answer
    view: JobView | None = None  # the job in the scheduler's words, where it has words for it


NOT_KNOWN = JobAnswer(Known.NOT_KNOWN)
NO_SUCH_JOB = JobAnswer(Known.NO_SUCH_JOB)


def answer_of(view: JobView) -> JobAnswer:
    """Return the answer that a job's line in a listing is."""
    return JobAnswer(Known.LISTED if view.meaning.is_alive else Known.ENDED, view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A command about jobs that a listing leaves out, and how its answer is read. Its exit status does not matter."""

    # `{ids}` stands for many jobs, `{id}` for one, `{job}` for a whole array (without any of its elements)
    command: tuple[str, ...]
    # pattern of its output about a known job, with `{id}`, `{job}` and `{index}`. Its groups are `word`, or
    # `ended` for another word, and perhaps `reason`. The last match counts. Empty: this question only finds
    # out that there is no such job
    line: str = ""
    words: Words | None = None  # meanings of the words; empty: those of the listing
    # pattern of what it prints, on either stream, of a job the scheduler does not have; empty: its answer
    # never proves that
    unknown: str = ""
    # a job that it calls waiting or running may be gone: accounting that missed an end, say
    only_ends: bool = False

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
        return known is NOT_KNOWN or (known is NO_SUCH_JOB and self.only_ends)

    def read(self, element: str, place: tuple[str, str], said: str, listed: Words) -> JobAnswer:
        """Read the answer about an element."""
        names = (re.escape(element), *map(re.escape, place))
        if self.unknown and re.search(filled(self.unknown, *names), said, re.MULTILINE):
            return NO_SUCH_JOB
        found = list(re.finditer(filled(self.line, *names), said, re.MULTILINE)) if self.line else []
        if not found:
            return NOT_KNOWN
        parts = found[-1].groupdict()
        word = parts["word"] or parts["ended"]
        meaning = meaning_of(self.words or listed, word)
        if self.only_ends and meaning.is_alive:
            return NOT_KNOWN
        return answer_of(JobView(meaning, word, given(parts.get("reason") or "")))


def filled(text: str, element: str, job: str, index: str) -> str:
    """Return a word or pattern of a question about one job; a pattern's own braces stay."""
    return text.replace("{id}", element).replace("{job}", job).replace("{index}", index)


def meaning_of(words: Words, word: str) -> Meaning:
    """Return the meaning of a scheduler's word; an unknown word means that the job waits."""
    known = max((start for start in words if word.startswith(start)), key=len, default=None)
    return WAITING if known is None else words[known]


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


def inquire(
    questions: Sequence[Question],
    places: Mapping[str, tuple[str, str]],
    listed: Words,
    ask: Callable[[list[str]], tuple[int, str] | None],
) -> dict[str, JobAnswer]:
    """Ask about jobs that a listing leaves out.

    `ask` runs a command and returns its exit status and its output on both streams; None: it did not answer.
    """
    found = dict.fromkeys(places, NOT_KNOWN)
    for question in questions:
        asked = {element: places[element] for element, known in found.items() if question.is_open(known)}
        for command, about in question.commands(asked):
            answered = ask(command)
            if answered is None:
                break
            status, text = answered
            read = {element: question.read(element, places[element], text, listed) for element in about}
            said = {element: answer for element, answer in read.items() if answer is not NOT_KNOWN}
            found.update(said)
            if status != 0 and not said:
                break  # it fails without a word about any of them: so would the next one
    return found

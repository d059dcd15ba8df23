"""What a scheduler says about jobs: one listing, and questions about those that it leaves out.

    listing ──> listed, or ended with a word                       that is the answer
            └─> left out ──> the record's questions ──> listed, ended, no such job, or not known
                                                                       │
                      "no such job" and a minute without a sign of life: lost

A listing may be cut short, stale or empty, and proves the end of no job that it leaves out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet3.parallel.backends import Scheduler, row
from espnet3.parallel.backends.queue_answers import (
    NOT_KNOWN,
    JobAnswer,
    JobView,
    Known,
    Question,
    answer_of,
    together,
)
from espnet3.parallel.backends.queue_states import WAITING
from espnet3.parallel.detached.launch.arrays import folder_of, ids_of, submitted
from espnet3.parallel.detached.launch.commands import ask
from espnet3.parallel.detached.launch.printed import last_line, report
from espnet3.parallel.detached.layout import Layout
from espnet3.parallel.detached.states import JobState, disk_now
from espnet3.parallel.errors import ConfigError, SubmissionError

SILENCE = 60.0  # seconds without a sign of life, after which "no such job" is believed: servers start, disks are late
_TO_COME = JobView(WAITING, "not materialized yet")


def scheduler_of(env: str) -> Scheduler:
    """Return the record of a batch scheduler.

    Raises:
        ConfigError: The backend is none.
    """
    found = row(env).scheduler
    if found is None:
        raise ConfigError(f"env: {env} is not a batch scheduler")
    return found


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a queue showed.

    Attributes:
        views: Jobs and elements by id.
        to_come: By the job of an array, the index from which on the scheduler has not made its elements yet.
        problem: What the commands said that was no answer; empty: nothing.
        failed: The listing command had an exit status of its own.
    """

    views: Mapping[str, JobView]
    to_come: Mapping[str, int]
    problem: str
    failed: bool

    def answer(self, scheduler: Scheduler, element: str) -> JobAnswer:
        """Return what the listing says about an element."""
        if element in self.views:
            return answer_of(self.views[element])
        job, index = scheduler.parts_of(element)
        if index and int(index) >= self.to_come.get(job, int(index) + 1):
            return answer_of(_TO_COME)
        return NOT_KNOWN


def look(scheduler: Scheduler, folder: Path) -> Listing:
    """List the jobs of this process's user.

    Raises:
        SubmissionError: The command could not be started, or did not end in time.
    """
    said = ask(scheduler.query(elements=True), folder)
    problem = said.problem
    if scheduler.no_history and scheduler.no_history in said.error:
        said = ask(scheduler.query(elements=True, history=False), folder)
        problem = said.problem
    to_come: dict[str, int] = {}
    command = scheduler.query_to_come()
    if command:  # after the listing: an element that is made in between is left out by both, and asked about
        late = ask(command, folder)
        to_come = scheduler.read_to_come(late.out)
        problem = problem or late.problem
    if scheduler.no_jobs and re.search(scheduler.no_jobs, said.error):
        return Listing({}, to_come, "", failed=False)
    return Listing(scheduler.read(said.out), to_come, problem, said.status != 0)


def answers(scheduler: Scheduler, folder: Path, elements: list[str]) -> tuple[Listing, dict[str, JobAnswer]]:
    """Return what a scheduler says about elements: by its listing, or by its answers to questions.

    Raises:
        SubmissionError: The listing command could not be started, or did not end in time.
    """
    listing = look(scheduler, folder)
    found = {element: listing.answer(scheduler, element) for element in elements}
    said: dict[str, list[JobAnswer]] = {one: [] for one, each in found.items() if each is NOT_KNOWN}
    for question in scheduler.questions:
        asked = [element for element, got in said.items() if question.is_open(got)]
        for element, answer in _asked(scheduler, question, folder, asked).items():
            said[element].append(answer)
    return listing, {**found, **{element: together(got) for element, got in said.items()}}


def _asked(
    scheduler: Scheduler, question: Question, folder: Path, elements: list[str]
) -> dict[str, JobAnswer]:
    """Put one question about elements; a command that fails without a word about any of them is the last."""
    places = {element: scheduler.parts_of(element) for element in elements}
    found: dict[str, JobAnswer] = {}
    for command, about in question.commands(places):
        try:
            said = ask(command, folder)
        except SubmissionError:  # not every site has every command: it has said nothing
            return found
        for element in about:
            found[element] = question.read(element, places[element], said.all, scheduler.words)
        if said.status != 0 and all(found[element] is NOT_KNOWN for element in about):
            return found
    return found


def query(layout: Layout, jobs: dict[str, str]) -> dict[int, tuple[JobState, str]]:
    """Return what the scheduler knows about silent shards, by shard.

    Args:
        layout: The run's paths.
        jobs: The newest job of each shard.

    Raises:
        OSError: It does not answer.
    """
    env = layout.plan().env
    scheduler = scheduler_of(env)
    folder = folder_of(layout)
    ever = ids_of(submitted(layout, env))
    try:
        listing, known = answers(scheduler, folder, list(jobs.values()))
    except SubmissionError as error:
        raise OSError(f"{error.command}: {error.stderr.strip()}") from error
    if listing.failed and all(answer is NOT_KNOWN for answer in known.values()):
        raise OSError(listing.problem)
    now = disk_now(layout.folder)
    submission = _newest(folder.glob("array.*.json"))
    found: dict[int, tuple[JobState, str]] = {}
    for shard, job in jobs.items():
        own = layout.shard(int(shard))
        last = max(submission, _newest(own.iterdir()) if own.is_dir() else 0)  # by the clock of the disk
        silent = (now - last) / 1e9
        found[int(shard)] = _state(scheduler, folder, job, known[job], silent, listing.problem)
        for other in ever.get(shard, []):  # of an earlier submission: what is still queued would run it, too
            view = listing.views.get(other)
            if other != job and view is not None and view.meaning.is_alive and not found[int(shard)][0].alive:
                found[int(shard)] = (JobState(view.meaning.shard), f"{view.note}, as job {other}")
    _explain(scheduler, folder, jobs, known, found)
    return found


def _state(
    scheduler: Scheduler, folder: Path, job: str, answer: JobAnswer, silent: float, problem: str
) -> tuple[JobState, str]:
    """Return the state of a silent shard by what is known of its job."""
    if answer.known is Known.NOT_KNOWN:
        said = f" ({problem})" if problem else ""
        return JobState.UNKNOWN, f"job {job} is not listed, and nothing says how it ended{said}"
    if answer.known is Known.NO_SUCH_JOB and silent < SILENCE:
        return (
            JobState.UNKNOWN,
            f"the scheduler has no job {job}; it counts as ended after {SILENCE:g} s without a sign of life",
        )
    if answer.view is None:
        state, word = JobState.LOST, f"the scheduler no longer has job {job}"
    else:
        state, word = JobState(answer.view.meaning.shard), answer.view.note
    if state.alive:
        return state, word
    reported = report(scheduler, folder, job)
    if reported is not None:
        return reported
    quoted = last_line(scheduler, folder, job) if state is JobState.LOST else ""
    return state, f"{word}; its output ends with: {quoted}" if quoted else word


def _newest(files: Iterable[Path]) -> int:
    """Return when the newest of some files was touched, in nanoseconds."""
    times = [0]
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a lease that is cleaned up
            times.append(file.stat().st_mtime_ns)
    return max(times)


def _explain(
    scheduler: Scheduler,
    folder: Path,
    jobs: Mapping[str, str],
    known: Mapping[str, JobAnswer],
    found: dict[int, tuple[JobState, str]],
) -> None:
    """Add the scheduler's own comment to what waits without a reason, where only a question gives one.

    The elements of an array wait for the same reason: one is asked about, or the array itself.
    """
    question = next((each for each in scheduler.questions if "<reason>" in each.line), None)
    if question is None or "<reason>" in scheduler.line:
        return
    reasons: dict[str, str] = {}
    for shard, job in jobs.items():
        state, note = found[int(shard)]
        view = known[job].view
        if state is not JobState.PENDING or view is None or view.reason:
            continue
        number, index = scheduler.parts_of(job)
        whole = scheduler.cancel.format(job=number) if index else job
        if whole not in reasons:
            reasons[whole] = _reason(scheduler, question, folder, whole, job)
        if reasons[whole]:
            found[int(shard)] = state, f"{note}: {reasons[whole]}"


def _reason(scheduler: Scheduler, question: Question, folder: Path, *elements: str) -> str:
    for element in elements:
        answer = _asked(scheduler, question, folder, [element]).get(element, NOT_KNOWN)
        if answer.view is not None and answer.view.reason:
            return answer.view.reason
    return ""

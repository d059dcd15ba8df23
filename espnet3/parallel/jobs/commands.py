"""A scheduler's commands, with a driver and without one: each has a limit of time, and errors hold what was printed.

    submit ──> ids, by the record's pattern            answers ──> listed, ended, no such job, or not known
    cancel ──> names compared ──> the command ──> what was refused, and what is not ours

All of it runs in the thread that asks. An event loop asks from other threads, a few at a time (`in_thread`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import subprocess
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from espnet3.parallel.backends.scheduler import JobAnswer, JobView, Meaning, Scheduler, number_of, of_user
from espnet3.parallel.errors import ConfigError, SubmissionError

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

SECONDS = 120.0  # for a command: a busy scheduler answers late
_LIMIT_SECONDS = 10.0  # for the question how large an array may be: without an answer it is as large as usual
AT_END = 30.0  # for all that cancels jobs of a driver: a call that has its results waits no longer
_AT_ONCE = 8  # commands that run at the same time for one event loop
_IN_ONE = 500  # jobs that one command cancels at most
_AGAIN = 1.0  # seconds until a task is cancelled once more
_NO_OUTPUT = re.compile(r"^ended\.|\.(?:json|sh|sub|log)$")  # notes and scripts, and HTCondor's log of events
_TO_COME = JobView(Meaning.WAITING, "not materialized yet")
_limits: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()  # by event loop


@dataclass(frozen=True, slots=True)
class Said:
    """The output of a command, whatever its exit status."""

    command: str  # as a person types it
    status: int
    out: str
    error: str

    @property
    def all(self) -> str:
        """The output on both streams."""
        return f"{self.out}\n{self.error}"

    @property
    def problem(self) -> str:
        """The standard error, else an exit status other than 0, with the command; empty if there is neither."""
        said = self.error.strip() or (f"exit status {self.status}" if self.status else "")
        return f"{self.command}: {said}" if said else ""

    def succeeded(self) -> Said:
        """Return this object if the exit status is 0; raise a SubmissionError otherwise."""
        if self.status != 0:
            raise SubmissionError(self.command, self.status, self.error.strip() or self.out.strip())
        return self


Ask = Callable[[list[str]], Said]
Named = Mapping[str, Sequence[str]]  # jobs by their ids, each with the names that the queue may have for it


def run(command: Sequence[str], *, stdin: str = "", seconds: float | None = None, **where: Any) -> Said:
    """Run a command and return what it printed; `where` has its `cwd` and `env`, if they are not those of this process.

    Without a limit of its own it has `SECONDS`. One that does not end in time is killed with all it has started, and
    that is a SubmissionError.
    """
    seconds = SECONDS if seconds is None else seconds
    shown = shlex.join(command)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # programs of a site's wrapper may hold the streams open
            **where,
        )
    except OSError as error:
        hint = f"Is this a machine jobs are submitted from? {command[0]!r} must be on its PATH."
        raise SubmissionError(shown, None, str(error), hint) from error
    try:
        out, err = process.communicate(stdin, timeout=seconds)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise SubmissionError(shown, None, f"it did not answer within {seconds:g} s") from error
        raise
    return Said(shown, process.returncode, out, err)


def refuse_elsewhere(env: str, scheduler: Scheduler, command: str, script: str) -> None:
    """Refuse jobs that would go to another cluster or server than the one that every other command asks."""
    mark, pattern = scheduler.mark, scheduler.elsewhere
    lines = [line.removeprefix(mark) for line in script.splitlines() if line.startswith(mark)]
    lines += [f"{name}={value}" for name, value in os.environ.items() if f"{name}=" in pattern]
    for line in (command, *lines) if pattern else ():
        if sent := re.search(rf"(?:^|\s)[\"']?(?:{pattern}).*", line):
            raise ConfigError(
                f"options of {env}: {sent[0].strip()} sends jobs to another cluster, where they could be neither "
                f"followed nor cancelled: leave it out. What works is to set {scheduler.place[0]} to that one cluster "
                f"in the environment, which every command of {env} heeds"
            )


def submit(scheduler: Scheduler, ask: Callable[[], Said], count: int | None, otherwise: str) -> list[str]:
    """Return the ids of a job or an array that is submitted; an error whose answer was lost says how to look for it."""
    try:
        said = ask().succeeded()
        try:
            return scheduler.ids_in(said.out, count, otherwise)
        except ValueError as error:
            raise SubmissionError(said.command, said.status, f"{said.all.strip()}\n({error})") from error
    except SubmissionError as error:
        if error.may_have_queued:
            look = shlex.join(of_user(scheduler.listing))
            error.hint = f"Before it is submitted again, look for it in the queue: {look}"
        raise


def array_limit(scheduler: Scheduler, ask: Callable[..., Said]) -> tuple[int, str]:
    """Ask how many elements the site allows in an array; without an answer, take as many as usual.

    Returns:
        Their number, and where it comes from, as a sentence for an error of a submission.
    """
    usual = scheduler.usual_array
    guess = f"An array was taken to have {usual} elements at most, as usual"
    if scheduler.site_limit is None:
        return usual, guess
    command, pattern = scheduler.site_limit
    try:
        said = ask(list(command), seconds=_LIMIT_SECONDS)
    except SubmissionError as error:
        return usual, f"{guess}, because {error.command!r} did not answer: {error.stderr}"
    found = re.search(pattern, said.out, re.MULTILINE)
    if found is None or not int(found[1]):
        return usual, f"{guess}: {said.command!r} names no limit"
    return int(found[1]), f"{said.command!r} allows an array {found[1]} elements"


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of one look at a queue."""

    views: Mapping[str, JobView]  # jobs and elements by id
    to_come: Mapping[str, int]  # by the job of an array, the first index whose element is not made yet
    problem: str  # errors that the commands printed, or why there is no answer
    failed: bool  # the listing command did not answer, or had an exit status of its own

    def answer(self, scheduler: Scheduler, element: str) -> JobAnswer:
        """Return what the listing says about an element."""
        job, index = scheduler.parts_of(element)
        if element in self.views:
            view = self.views[element]
            whole = self.views.get(scheduler.cancel.format(job=job)) if index else None
            held = whole is not None and whole.meaning is Meaning.HELD and view.meaning is Meaning.WAITING
            return whole if held else view
        if index and int(index) >= self.to_come.get(job, int(index) + 1):
            return _TO_COME
        return None


def _look(scheduler: Scheduler, ask: Ask, jobs: Sequence[str]) -> Listing:
    said = ask(of_user(scheduler.listing))
    views, problem, to_come = scheduler.read(said.out), said.problem, dict[str, int]()
    if scheduler.to_come is not None and not views.keys() >= set(jobs):
        # after the listing: an element that is made in between is left out by both, and asked about
        command, pattern = scheduler.to_come
        late = ask(of_user(command))
        to_come = {each["job"]: int(each["next"]) for each in re.finditer(pattern, late.out, re.MULTILINE)}
        problem = problem or late.problem
    if scheduler.no_jobs and re.search(scheduler.no_jobs, said.error):
        return Listing({}, to_come, "", failed=False)
    return Listing(views, to_come, problem, said.status != 0)


def answers(scheduler: Scheduler, ask: Ask, jobs: Sequence[str]) -> tuple[Listing, dict[str, JobAnswer]]:
    """Return what a scheduler says about jobs: by its listing, or by its answers to questions.

    A listing may be cut short, stale or empty, and proves the end of no job that it leaves out. A scheduler that does
    not answer the first command is asked no more: nothing is known.
    """
    try:
        listing = _look(scheduler, ask, jobs)
    except SubmissionError as error:
        why = f"{error.command}: {error.stderr.strip()}"
        return Listing({}, {}, why, failed=True), dict.fromkeys(jobs)
    found = {job: listing.answer(scheduler, job) for job in jobs}
    left = {job: scheduler.parts_of(job) for job in jobs if found[job] is None}
    return listing, {**found, **inquire(scheduler, ask, left)}


def inquire(scheduler: Scheduler, ask: Ask, places: Mapping[str, tuple[str, str]]) -> dict[str, JobAnswer]:
    """Ask about jobs that a listing leaves out, given their parts (`parts_of`)."""
    found: dict[str, JobAnswer] = dict.fromkeys(places)
    for question in scheduler.questions:
        asked = {element: places[element] for element, known in found.items() if question.is_open(known)}
        for command, about in question.commands(asked):
            try:
                said = ask(command)
            except SubmissionError as error:
                logger.debug("%s", error)
                break
            read = {one: question.read(one, places[one], said.all, scheduler.words) for one in about}
            told = {one: answer for one, answer in read.items() if answer is not None}
            found.update(told)
            if said.status != 0 and not told:
                break  # it fails without a word about any of them: so would the next one
    return found


class Outputs:
    """The output files in some folders by the elements that wrote them; the folders are listed once."""

    def __init__(self, scheduler: Scheduler, folders: Sequence[Path]) -> None:
        self._scheduler = scheduler
        # by each number in a name, and "7$" by the last one: a pattern for each of many elements looks at few files
        self._files: dict[str, list[Path]] = defaultdict(list)
        for file in (file for folder in folders for file in folder.glob("*")):
            numbers = re.findall(r"\d+", file.name)
            for key in {"", *numbers, *(f"{number}$" for number in numbers[-1:])}:
                self._files[key].append(file)

    def of(self, element: str) -> list[Path]:
        """Return the files of an element that are there and not empty; some schedulers deliver them late.

        A name has the element's id, or ends with that of its array, which some write a file for.
        """
        job, index = self._scheduler.parts_of(element)
        own = rf"(?<!\d){re.escape(job)}"
        own = rf"{own}\D{{1,2}}{index}(?!\d)|(?<!\d[-._\[]){own}\D*$" if index else rf"{own}\D*$"
        name, numbers = re.compile(own), re.findall(r"\d+", job)
        keys = [*filter(None, [index]), f"{numbers[-1]}$"] if numbers else [""]
        near = {file for key in keys for file in self._files.get(key, [])}
        own_files = [file for file in near if name.search(file.name) and not _NO_OUTPUT.search(file.name)]
        return sorted(file for file in own_files if file.is_file() and file.stat().st_size)


def reasons(scheduler: Scheduler, ask: Ask, jobs: Sequence[str]) -> dict[str, str]:
    """Return why jobs wait, in the scheduler's own words; empty where it gives no reason.

    The elements of an array wait for the same one: the array itself is asked about, else one of them.
    """
    said: dict[str, str] = {}
    for job in jobs if scheduler.comment is not None else ():
        number, index = scheduler.parts_of(job)
        whole = scheduler.cancel.format(job=number) if index else job
        if whole not in said:
            told = (_comment(scheduler, ask, one) for one in dict.fromkeys((whole, job)))
            said[whole] = next(filter(None, told), "")
        said[job] = said[whole]
    return {job: said.get(job, "") for job in jobs}


def _comment(scheduler: Scheduler, ask: Ask, job: str) -> str:
    try:
        return scheduler.read_comment(ask(scheduler.ask_comment(job)).out)
    except SubmissionError as error:  # it may have ended just now
        logger.debug("%s", error)
        return ""


@dataclass(frozen=True, slots=True)
class NotCancelled:
    """Reasons against cancelling jobs, by id, each as a sentence for a person."""

    foreign: dict[str, str]  # the queue has another name for the job: it was left alone
    refused: dict[str, str]  # by the command; some refuse where a job has just ended

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys([*self.foreign.values(), *self.refused.values()]))


def cancel(scheduler: Scheduler, ask: Ask, command: Sequence[str], jobs: Named) -> NotCancelled:
    """Cancel jobs, or whole arrays, that the queue does not call otherwise than they were submitted."""
    foreign, said = dict[str, str](), list[str]()
    if scheduler.named is not None:
        whole = {number_of(job): job for job in jobs if jobs[job]}
        try:
            for words, _ in scheduler.named.commands({job: (number, "") for number, job in whole.items()}):
                said.append(ask(of_user(words)).out)
        except SubmissionError as error:
            logger.debug("%s", error)
        for job, name in scheduler.foreign("\n".join(said), jobs).items():
            why = f"not {' or '.join(jobs[job])}: it is another one, and was left alone"
            foreign[job] = f"job {job} is {name!r} in the queue, {why}"
    ours = [job for job in jobs if job not in foreign]
    refused: dict[str, str] = {}
    for at in range(0, len(ours), _IN_ONE):
        refused.update(_refused(ask, command, ours[at : at + _IN_ONE]))
    return NotCancelled(foreign, refused)


def _refused(ask: Ask, command: Sequence[str], jobs: list[str]) -> dict[str, str]:
    try:
        ask([*command, *jobs]).succeeded()
    except SubmissionError as error:
        if error.exit_code is not None and len(jobs) > 1:
            # where one job has ended already, some schedulers cancel none of the others
            return {job: why for one in jobs for job, why in _refused(ask, command, [one]).items()}
        how = "did not work" if error.exit_code is None else f"ended with {error.exit_code}"
        said = f"{error.command} {how}: {error.stderr.strip() or '(it printed nothing)'}"
        return dict.fromkeys(jobs, said)
    return {}


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended.

    Before Python 3.12 `asyncio.wait_for` returns where what it waited for and the cancellation come together, and the
    task goes on; so do libraries that swallow a cancellation. Once is not enough then.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN)


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call what runs a scheduler's commands, without keeping the event loop from its other work."""
    async with _limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        try:
            called = asyncio.get_running_loop().run_in_executor(None, partial(function, *args, **kwargs))
        except RuntimeError:  # the program ends, and no thread begins any more
            return function(*args, **kwargs)
        return await called


async def cancel_jobs(scheduler: Scheduler, jobs: Sequence[Any]) -> None:
    """Cancel the jobs of a driver that were submitted, once, by one command; accept that they have ended already."""
    named = {}
    for job in jobs:
        if job.job_id and not job.cancelled:
            named[job.job_id], job.cancelled = job.names, True
    if not named:
        return
    command = shlex.split(jobs[0].cancel_command)
    # whose wait is cut short has its jobs cancelled all the same
    left = await asyncio.shield(in_thread(_cancel_in_time, scheduler, command, named))
    if left.foreign or left.refused:
        by_hand = f". Cancel them with: {shlex.join([*command, *left.refused])}" if left.refused else ""
        logger.warning(
            "not every job could be cancelled, and some may be left in the queue: %s%s", left, by_hand
        )


def _cancel_in_time(scheduler: Scheduler, command: list[str], jobs: Named) -> NotCancelled:
    end = time.monotonic() + AT_END

    def ask(words: list[str]) -> Said:
        return run(words, seconds=max(1.0, end - time.monotonic()))

    left = cancel(scheduler, ask, command, jobs)
    known = answers(scheduler, ask, list(left.refused))[1] if left.refused else {}
    gone = {job for job, view in known.items() if view is not None and not view.meaning.is_alive}
    refused = {job: said for job, said in left.refused.items() if job not in gone}
    return NotCancelled(left.foreign, refused)

"""A scheduler's commands: a few at a time, one for many jobs where possible, and errors that hold what was printed."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import weakref
from typing import Any

from espnet3.parallel.backends.queue_answers import Answered, JobAnswer, answer_of, inquiry
from espnet3.parallel.backends.scheduler import Scheduler
from espnet3.parallel.errors import SubmissionError

logger = logging.getLogger(__name__)

_AT_ONCE = 8  # commands that run at the same time on one event loop
_MOMENT = 0.05  # seconds within which jobs that are to be cancelled share a command
_IN_ONE = 500  # jobs that one command cancels at most
_limits: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()


def _limit() -> asyncio.Semaphore:
    return _limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE))


async def call(command: list[str], *, shell: bool = False) -> str:
    """Run a scheduler's command and return what it printed."""
    # dask-jobqueue would drop the error output of bsub
    words = [word.removesuffix(" 2> /dev/null") for word in command] if shell else command
    shown = " ".join(words) if shell else shlex.join(words)
    start: Any = asyncio.create_subprocess_shell if shell else asyncio.create_subprocess_exec
    status, out, err = await _run(start, words, shown)
    if status != 0:
        raise SubmissionError(shown, status, err or out)
    return out


async def ask(command: list[str]) -> tuple[int, str]:
    """Run a scheduler's command; return its exit status and what it printed, on both streams."""
    status, out, err = await _run(asyncio.create_subprocess_exec, command, shlex.join(command))
    return status, f"{out}\n{err}"


async def _run(start: Any, words: list[str], shown: str) -> tuple[int, str, str]:
    async with _limit():
        try:
            process = await start(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        except OSError as error:
            hint = f"Is this a machine jobs are submitted from? {words[0]!r} must be on its PATH."
            raise SubmissionError(shown, None, str(error), hint) from error
        out, err = await process.communicate()
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


# --- what it says about jobs ---


async def answers(scheduler: Scheduler, jobs: list[str]) -> dict[str, JobAnswer]:
    """Return what a scheduler says about jobs, by id: by its listing, or by answers to questions.

    A listing may be cut short, stale or empty, and proves the end of no job that it leaves out.
    """
    parts = {job: scheduler.parts_of(job) for job in jobs}
    views = scheduler.read(await _listed(scheduler, elements=any(index for _, index in parts.values())))
    found = {job: answer_of(views[job]) for job in jobs if job in views}
    places = {job: place for job, place in parts.items() if job not in views}
    talk = inquiry(scheduler.questions, places, scheduler.words)
    answered: Answered | None = None
    while True:
        try:
            command = talk.send(answered)
        except StopIteration as end:
            return {**found, **end.value}
        try:
            answered = await ask(command)
        except SubmissionError as error:
            logger.debug("%s", error)
            answered = None


async def _listed(scheduler: Scheduler, *, elements: bool) -> str:
    try:
        return await call(scheduler.query(elements=elements, history=False))
    except SubmissionError as error:
        if scheduler.no_jobs and re.search(scheduler.no_jobs, error.stderr):
            return ""
        raise


async def comment(scheduler: Scheduler, job: str) -> str:
    """Return why a job waits, in the scheduler's own words; empty: it does not say."""
    try:
        return scheduler.read_comment(await call(scheduler.ask_comment(job)))
    except SubmissionError as error:  # it may have ended just now
        logger.debug("%s", error)
        return ""


# --- cancelling ---


class _Batch:
    """Jobs that wait for the command that will cancel them."""

    def __init__(self, command: list[str]) -> None:
        self.jobs: list[str] = []
        self.done = asyncio.get_running_loop().create_task(self._cancel(command))

    async def _cancel(self, command: list[str]) -> None:
        await asyncio.sleep(_MOMENT)
        _batches[asyncio.get_running_loop()].pop(tuple(command))  # later jobs go into the next batch
        for at in range(0, len(self.jobs), _IN_ONE):
            part = self.jobs[at : at + _IN_ONE]
            # where one job has ended already, some schedulers cancel none of the others
            if not await _cancelled(command, part) and len(part) > 1:
                await asyncio.gather(*(_cancelled(command, [job]) for job in part))


_batches: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], _Batch]] = weakref.WeakKeyDictionary()


async def cancel(command: list[str], job: str) -> None:
    """Cancel a job, in one command with all that are cancelled at the same moment; an ended job is no error.

    Two hundred commands, one for each job, take long and are a load on a scheduler.
    """
    mine = _batches.setdefault(asyncio.get_running_loop(), {})
    batch = mine.get(tuple(command)) or mine.setdefault(tuple(command), _Batch(command))
    batch.jobs.append(job)
    await asyncio.shield(batch.done)


async def _cancelled(command: list[str], jobs: list[str]) -> bool:
    try:
        await call([*command, *jobs])
    except SubmissionError as error:
        logger.debug("%s", error)
        return False
    return True

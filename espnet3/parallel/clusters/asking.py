"""What a scheduler says about the jobs of workers: one listing, and questions about those that it leaves out.

A listing may be cut short, stale or empty, and proves the end of no job that it leaves out. What no answer explains is
not known: its job goes on.
"""

from __future__ import annotations

import logging
import re

from espnet3.parallel.backends.queue_answers import Answered, JobAnswer, answer_of, inquiry
from espnet3.parallel.backends.scheduler import Scheduler
from espnet3.parallel.clusters.commands import ask, call
from espnet3.parallel.errors import SubmissionError

logger = logging.getLogger(__name__)


async def answers(scheduler: Scheduler, jobs: list[str]) -> dict[str, JobAnswer]:
    """Return what a scheduler says about jobs, by id.

    Raises:
        SubmissionError: It cannot be asked, or fails to list any.
    """
    views = scheduler.read(await _listed(scheduler))
    found = {job: answer_of(views[job]) for job in jobs if job in views}
    places = {job: scheduler.parts_of(job) for job in jobs if job not in views}
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


async def _listed(scheduler: Scheduler) -> str:
    try:
        return await call(scheduler.query())
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

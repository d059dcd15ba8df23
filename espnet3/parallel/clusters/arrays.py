"""Worker jobs that are submitted together are one job array: one command submits them all.

    jobs ──> runs of consecutive names ──one script each──> sbatch --array=0-199
                                                               │
    each job has the id of its element, by which it is watched, replaced and cancelled alone

The script is that of the first of them, which finds its worker's name from the index of its element.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from espnet3.parallel.backends.scheduler import Scheduler, SubmitBy
from espnet3.parallel.errors import SubmissionError
from espnet3.parallel.jobs.commands import array_limit, in_thread, run, submit
from espnet3.parallel.jobs.script import is_posix, quoted_word

logger = logging.getLogger(__name__)


def array_script(scheduler: Scheduler, job: Any, count: int) -> str | None:
    """Return the script of an array whose first element is a job; None: it cannot be made of the job's."""
    script, name = job.job_script(), str(job.name)
    before, _, number = name.rpartition("-")
    own = f"--name {quoted_word(name)} "
    if script.count(own) != 1 or not is_posix(scheduler, script):
        return None
    counted = f"$(({scheduler.index} + {int(number) - scheduler.first}))"
    if scheduler.submit_by is SubmitBy.DESCRIPTION:
        return _array_description(scheduler, script, own, f"--name {before}-{counted} ", count)
    script = script.replace(own, f"--name {quoted_word(before + '-')}{counted} ")
    lines = script.splitlines()
    if scheduler.replaces:
        lines = [line for line in lines if not line.startswith(f"{scheduler.mark} {scheduler.replaces} ")]
    places = [at for at, line in enumerate(lines) if line.startswith(f"{scheduler.mark} ")]
    if scheduler.element_log is not None:
        for at in places:
            lines[at] = lines[at].replace(*scheduler.element_log)
    at = max(places, default=0) + 1
    lines.insert(at, f"{scheduler.mark} {scheduler.array_directive(str(job.job_name), count, count)}")
    return "\n".join(lines) + "\n"


def _array_description(scheduler: Scheduler, script: str, own: str, counted: str, count: int) -> str:
    # its arguments are `sh -c command`, and `$1` gets the element's index
    for text, written in scheduler.quoting:
        counted = counted.replace(text, written)
    lines = script.replace(own, counted).rstrip().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("Arguments = "))
    lines[at] = f'{lines[at][:-1]} worker $(Process)"'
    lines[-1] = scheduler.array.format(count=count)
    return "\n".join(lines) + "\n"


class Arrays:
    """Submits the jobs of one cluster."""

    def __init__(self, scheduler: Scheduler, patience: float) -> None:
        self.patience = patience  # seconds for a command
        self.refused = False  # an array was: each job is submitted by itself from then on
        self.scheduler = scheduler
        self._most, self._why = 1, ""  # elements of an array, and where that number is from, once it is known

    async def submit(self, jobs: Sequence[Any]) -> None:
        """Submit jobs, and give each its id; those that are taken keep it where others are refused."""
        calls: list[tuple[list[Any], str | None]] = []
        groups = [[job] for job in jobs] if self.refused else _consecutive(jobs)
        if not self._why and len(groups) < len(jobs):
            self._most, self._why = await in_thread(array_limit, self.scheduler, run)
        most = self._most
        for part in (group[at : at + most] for group in groups for at in range(0, len(group), most)):
            script = array_script(self.scheduler, part[0], len(part)) if len(part) > 1 else None
            calls += [(part, script)] if script is not None else [([each], None) for each in part]
        done = await asyncio.gather(*(self._submit(*call) for call in calls), return_exceptions=True)
        for error in filter(None, done):
            raise error

    async def _submit(self, jobs: list[Any], script: str | None) -> None:
        first = jobs[0]
        text = script or first.job_script()
        # the description of a job alone makes it the first of its array, too
        whole = script is not None or self.scheduler.submit_by is SubmitBy.DESCRIPTION
        try:
            with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
                file.write(text)
                file.flush()
                command, stdin = _command(self.scheduler, first, text, file.name)
                ask = partial(run, command, stdin=stdin, seconds=self.patience)
                count = len(jobs) if whole else None
                ids = await in_thread(submit, self.scheduler, ask, count, first.job_id_regexp)
        except SubmissionError as error:
            self.refused = self.refused or (script is not None and not error.may_have_queued)
            if script is not None:
                error.hint = error.hint or self._why
            raise
        logger.debug("%d jobs in one submission: %s to %s", len(ids), ids[0], ids[-1])
        for job, element in zip(jobs, ids, strict=True):
            job.job_id, job.names = element, self.scheduler.names_in(text)


def _command(scheduler: Scheduler, job: Any, script: str, file: str) -> tuple[list[str], str]:
    # and its standard input; each as dask-jobqueue has it
    words = shlex.split(job.submit_command)
    if getattr(job, "use_stdin", False):
        return words, script
    if scheduler.submit_by is not SubmitBy.ARGUMENTS:
        return [*words, file], ""
    lines = script.splitlines(keepends=True)
    options = [line.removeprefix(scheduler.mark) for line in lines if line.startswith(f"{scheduler.mark} ")]
    return [*words, *shlex.split("".join(options)), "".join(line for line in lines if line[0] != "#")], ""


def _consecutive(jobs: Sequence[Any]) -> list[list[Any]]:
    def number(job: Any) -> int:
        return int(job.name.rpartition("-")[2])

    grouped = groupby(enumerate(sorted(jobs, key=number)), key=lambda each: number(each[1]) - each[0])
    return [[job for _, job in group] for _, group in grouped]

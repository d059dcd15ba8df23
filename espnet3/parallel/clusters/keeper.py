"""Keeps a cluster of jobs alive: watches the queue, replaces jobs that are gone, explains what is wrong.

The keeper lives on the cluster's event loop. It asks the queue only while something is open: a job
whose worker has not come, or a worker that went away. One query answers for all jobs.

    wanted ──submitted──> job ──worker connects──> up ──worker goes──> the queue is asked ──over──> another is wanted
                           └──over before any worker came──> an early death, with its log; three in a row: broken

The cluster's `worker_spec` holds what is wanted, and the keeper alone submits jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from espnet3.parallel.backends.scheduler import NO_SUCH_JOB, Meaning, Scheduler
from espnet3.parallel.clusters.arrays import Arrays
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import SubmissionError
from espnet3.parallel.jobs import commands
from espnet3.parallel.jobs.commands import AT_END, Outputs, answers, end_task, in_thread, reasons, run
from espnet3.parallel.jobs.script import avoiding
from espnet3.parallel.pilots.worker_cluster import WorkerCluster, listed, not_there

logger = logging.getLogger(__name__)

_ask = partial(run, seconds=AT_END)  # the next look asks again

_TOGETHER, _ALONE = 1000, 16  # jobs submitted at a time: as job arrays, and with a command for each
_EARLY = 3  # jobs in a row that may end before their worker connects
_REFUSED = 5  # submissions in a row that may fail while no worker is there: about a minute
_PATIENCE = 300.0  # at most so many seconds between submissions that fail
_QUICK, _SLOW = 0.5, 10.0  # seconds between queries: at first, and at most
_SLOWER = 1.25  # a pause is so many times as long as the one before while nothing is new
_UNKNOWN = 3.0  # seconds after its submission for which the scheduler may say that it has no such job
_DENIED = 2  # times in a row it has to say so before the job counts as gone
_BYTES, _LINES = 4000, 20  # of a log's end
_SHOWN = 5  # jobs that a message describes one by one
_AWAY = 60.0  # seconds without a worker after which a job that had one is replaced: a nanny starts it again sooner


class JobKeeper(WorkerCluster):
    """The jobs of one cluster, which write to a folder of logs; it answers the driver in the cluster's place."""

    def __init__(self, cluster: Any, scheduler: Scheduler, logs: str, config: ParallelConfig) -> None:
        self.broken: str | None = None  # why no more jobs are submitted
        self.kept_logs = False  # logs are worth keeping when the cluster closes
        self._cluster = cluster
        self._scheduler = scheduler
        self._logs = Path(logs)
        self._arrays = Arrays(scheduler, min(commands.SECONDS, config.start_timeout))
        self._jobs: dict[str, Any] = {}  # that are submitted, by their names
        self._at_start, self._begun = True, False  # begun: a worker has come
        self._early = 0
        self._refused = 0
        self._not_before = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._no_answer = ""
        self._submission: asyncio.Task[None] | None = None

    async def start(self, jobs: int) -> None:
        """Submit the first jobs and begin to watch; the others are submitted while the first ones work."""
        arrivals: Any = SchedulerPlugin()
        arrivals.add_worker = arrivals.remove_worker = self._changed
        self._cluster.scheduler.add_plugin(arrivals, name="espnet3-job-keeper")
        self._cluster.scale(jobs=jobs)
        refused = await self._submit_wanted()
        if refused is not None and self._arrays.refused and not self._jobs:
            refused = await self._submit_wanted()  # one after another they may be taken
        if refused is not None and not self._jobs:
            raise refused
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def resized(self) -> None:
        """Submit at once what has been asked for."""
        self._at_start = self._at_start or bool(self._wanted())
        self._wake.set()

    async def stop(self) -> None:
        """Stop watching; the jobs stay."""
        if self._task is not None:
            await end_task(self._task)
        if self._submission is not None:  # a job without an id cannot be cancelled
            await asyncio.wait({self._submission})

    # --- asked by the driver ---

    def given_up(self) -> str | None:
        """Return why no worker will come, once that is known."""
        return self.broken

    @property
    def waits(self) -> bool:  # type: ignore[override]  # asked, not known before
        """True while no worker is there any more, and jobs are queued, or are about to be replaced."""
        jobs = list(self._jobs.values())
        queued = any(each.last_up or each.view.meaning.job is Meaning.WAITING for each in jobs)
        return queued and self._begun and not (self._no_answer or any(each.up for each in jobs))

    def missing(self) -> str:
        """Return the jobs whose workers have not come, with their states and what to look at."""
        jobs = [each for each in list(self._jobs.values()) if not each.up]
        shown = []
        for each in jobs[:_SHOWN]:
            tail = self._log_tail(each.job_id)
            self.kept_logs = self.kept_logs or bool(tail)
            look = self._scheduler.look.format(id=each.job_id)
            shown.append(not_there(f"job {each.job_id}", self._state_of(each), look, tail))
        return listed(shown, len(jobs) - len(shown), self._no_answer)

    def _state_of(self, each: Any) -> str:
        view, number = each.view, each.job_id
        # some schedulers give the reason of a single job alone
        if view.meaning.job in (Meaning.WAITING, Meaning.HELD) and not (view.reason or self._no_answer):
            view = replace(view, reason=reasons(self._scheduler, _ask, [number])[number])
        return str(view)

    def _log_tail(self, number: str) -> str:
        texts = []
        for path in Outputs(self._scheduler, [self._logs]).of(number):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _BYTES))
                tail = file.read().decode(errors="replace").strip().splitlines()[-_LINES:]
            if tail:
                texts.append("\n".join([f"the end of {path}:", *(f"    {line}" for line in tail)]))
        return "\n".join(texts)

    async def _watch(self) -> None:
        pause, before = _QUICK, None
        while True:
            self._count_workers()
            if self._open():
                await self._ask()
                await self._settle()
            known = {name: (each.view, each.up) for name, each in self._jobs.items()}
            pause, before = _QUICK if known != before else min(_SLOWER * pause, _SLOW), known
            if self._due():
                continue
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause if self._open() else None)
                await asyncio.sleep(0.05)  # the other workers of a job come and go with it
            self._wake.clear()

    def _open(self) -> bool:
        return any(not each.up for each in self._jobs.values()) or (not self.broken and bool(self._wanted()))

    def _wanted(self) -> list[str]:
        return [name for name in self._cluster.worker_spec if name not in self._jobs]

    def _changed(self, *_: Any, **__: Any) -> None:
        self._count_workers()  # a worker may come and go between two looks
        self._wake.set()

    def _count_workers(self) -> None:
        for name in [each for each in self._jobs if each not in self._cluster.worker_spec]:
            del self._jobs[name]  # there was no work for it
        workers = [str(worker.name) for worker in self._cluster.scheduler.workers.values()]
        up = Counter(name if name in self._jobs else name.rpartition("-")[0] for name in workers)
        for name, each in self._jobs.items():
            if each.up or up[name]:
                self._begun = True
                if not each.last_up:
                    self._early = 0
                each.last_up = time.monotonic()
            each.up = up[name]

    async def _ask(self) -> None:
        if not self._jobs:
            return
        jobs = {each.job_id: each for each in self._jobs.values()}
        listing, found = await in_thread(answers, self._scheduler, _ask, list(jobs))
        self._no_answer = listing.problem if listing.failed else ""
        for job, view in found.items():
            each = jobs[job]
            each.denied = each.denied + 1 if view is NO_SUCH_JOB else 0
            if each.denied >= _DENIED and time.monotonic() - each.since > _UNKNOWN:
                each.view = NO_SUCH_JOB
            elif view is not None and view is not NO_SUCH_JOB:
                each.view = view  # a job without an answer keeps its view

    async def _settle(self) -> None:
        self._count_workers()
        for name, each in list(self._jobs.items()):
            over = each.view.meaning.is_over or each.view.meaning.job is Meaning.HELD or self._is_away(each)
            if over and not each.up:
                await self._bury(name, each)
        if self._due():
            await self._submit_wanted()

    def _is_away(self, each: Any) -> bool:
        runs = each.view.meaning.job is Meaning.RUNNING  # for minutes, where its node is lost
        return runs and 0 < each.last_up < time.monotonic() - _AWAY

    def _due(self) -> bool:
        if self.broken or time.monotonic() < self._not_before:
            return False
        return bool(self._wanted()) and (self._at_start or self.wanted())

    async def _submit_wanted(self) -> Exception | None:
        refused: Exception | None = None
        by_arrays = not self._arrays.refused
        names = self._wanted()[: _TOGETHER if by_arrays else _ALONE]
        self._submission = asyncio.get_running_loop().create_task(self._submit(names))
        try:
            await asyncio.shield(self._submission)
        except (SubmissionError, OSError) as error:  # a scheduler may restart: try again
            refused = error
            self._refused += 1
            self._not_before = time.monotonic() + min(2**self._refused, _PATIENCE)
            # while some work or wait, the site may limit the jobs of a user
            if self._refused >= _REFUSED and not self._jobs:
                self.broken = f"a job could not be submitted, {self._refused} times in a row: {error}"
        else:
            self._refused = 0
        left = len(self._wanted())
        self._at_start = self._at_start and left > 0
        if refused is not None and by_arrays and self._arrays.refused:
            logger.warning(
                "a job array was refused, so each worker's job is submitted by itself: %s", refused
            )
        elif refused is not None and (self._jobs or self._task is not None):  # else it is raised
            logger.warning(
                "the scheduler has taken %d of %d jobs, and the run goes on with them; the others are tried again "
                "later. A smaller n_workers asks for fewer: %s",
                len(self._jobs),
                len(self._jobs) + left,
                refused,
            )
        return refused

    async def _bury(self, name: str, each: Any) -> None:
        state = await in_thread(self._state_of, each)
        self._jobs.pop(name, None)
        self._cluster.worker_spec.pop(name, None)
        self._cluster.workers.pop(name, None)
        if not each.view.meaning.is_over:  # else it could come back
            await each.close()
        each.status = Status.closed
        self._cluster.worker_spec.update(self._cluster.new_worker_spec())
        away = f", and its worker has been gone for {_AWAY:g} s" if self._is_away(each) else ""
        text = f"job {each.job_id} {state}{away}"
        if each.last_up or each.view.meaning.job is Meaning.EVICTED:
            logger.warning("%s; another one takes its place", text)
            return
        self._at_start = True  # the driver waits for its first workers again
        tail = self._log_tail(each.job_id)
        if not tail:
            await asyncio.sleep(0.5)  # on a shared file system its files may appear a moment later
            tail = self._log_tail(each.job_id)
        look = self._scheduler.look.format(id=each.job_id)
        text = not_there(text, "before its worker came", look, tail)
        self._early += 1
        self.kept_logs = True
        if each.view.node and self._scheduler.avoid:
            self._avoid(each.view.node)
        logger.warning("%s", text)
        if self._early >= _EARLY:
            self.broken = (
                f"{self._early} jobs in a row ended at their start, so no more are submitted. {text}"
            )
            logger.error("%s", self.broken)

    def _avoid(self, node: str) -> None:
        options = self._cluster.new_spec["options"]  # of further jobs
        options.update(avoiding(self._scheduler, options, [node]))  # beside those that these name
        for name in self._wanted():  # made with the options before
            if (job := self._cluster.workers.pop(name, None)) is not None:
                job.status = Status.closed

    async def _submit(self, names: list[str]) -> None:
        cluster = self._cluster
        await cluster  # makes those of its `worker_spec` that are not there
        jobs = {name: cluster.workers[name] for name in names if name in cluster.workers}
        try:
            await self._arrays.submit(list(jobs.values()))
        finally:
            taken = {name: job for name, job in jobs.items() if job.job_id is not None}
            for job in taken.values():
                job.since = time.monotonic()
            self._jobs |= taken
            unwanted = [job for name, job in taken.items() if name not in cluster.worker_spec]
            await asyncio.gather(*(job.close() for job in unwanted))

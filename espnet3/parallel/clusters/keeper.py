"""Keeps a cluster of jobs alive: watches the queue, replaces jobs that are gone, explains what is wrong.

The keeper lives on the cluster's event loop. It asks the queue only while something is open: a job
whose worker has not come, or a worker that went away. One query answers for all jobs.

    job submitted ──worker connects──> up ──worker goes──> the queue is asked ──over──> replaced
         └──over before any worker came──> an early death, with its log; three in a row: broken
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from espnet3.parallel.backends.scheduler import GONE, NEW, JobView, Known, QueueState
from espnet3.parallel.clusters.arrays import Arrays
from espnet3.parallel.dask_compat.clusters import add_specs, start_missing
from espnet3.parallel.errors import SubmissionError
from espnet3.parallel.jobs.commands import AT_END, Outputs, answers, end_task, in_thread, reasons, run
from espnet3.parallel.jobs.script import avoiding
from espnet3.parallel.pilots.worker_cluster import listed, not_there

logger = logging.getLogger(__name__)

_ask = partial(run, seconds=AT_END)  # the next look asks again

# jobs submitted before work begins, and at most at a time afterwards, with a command for each
_FIRST, _NEXT = 8, 32
_TOGETHER = 1000  # jobs submitted at a time as job arrays
_EARLY = 3  # jobs in a row that may end before their worker connects
_REFUSED = 5  # submissions in a row that may fail while no worker is there: about a minute
_PATIENCE = 300.0  # at most so many seconds between submissions that fail
_QUICK, _SLOW = 0.5, 10.0  # seconds between queries: at first, and after a minute of nothing new
_UNKNOWN = 3.0  # seconds after its submission for which the scheduler may say that it has no such job
_DENIED = 2  # times in a row it has to say so before the job counts as gone
_BYTES, _LINES = 4000, 20  # of a log's end
_SHOWN = 5  # jobs that a message describes one by one
_AWAY = 60.0  # seconds without a worker after which a job that had one is replaced: a nanny starts it again sooner
_LOOK = 1.0  # seconds between looks at the demand, where the number of workers follows it
_IDLE = 30.0  # seconds without work, after which workers beyond the minimum go


@dataclass(slots=True)
class Watched:
    """The state of one job."""

    job: Any  # dask-jobqueue's
    since: float = field(default_factory=time.monotonic)  # when it was submitted
    view: JobView = NEW  # by the queue's last answer
    comment: str = ""  # why it waits, where the scheduler says that only of a single job
    seen: bool = False  # a worker of it has come
    up: int = 0  # workers of it that are there
    left: float = 0.0  # when the last of them went
    denied: int = 0  # times in a row the scheduler has said that it has no such job

    @property
    def explained(self) -> JobView:
        """The queue's last answer, with the scheduler's comment where the list gives no reason."""
        waits = self.view.state in (QueueState.WAITING, QueueState.HELD)
        return replace(self.view, reason=self.comment) if waits and not self.view.reason else self.view


class _Arrivals(SchedulerPlugin):
    name = "espnet3-job-keeper"

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self._wake()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self._wake()


class JobKeeper:
    """The jobs of one cluster, which write to a folder of logs."""

    def __init__(self, cluster: Any, arrays: Arrays, logs: str, processes: int) -> None:
        self.broken: str | None = None  # why no more jobs are submitted
        self.kept_logs = False  # logs are worth keeping when the cluster closes
        self.wanted: Callable[[], bool] = lambda: True  # is there work for a worker?
        self._cluster = cluster
        self._scheduler = arrays.scheduler
        self._logs = Path(logs)
        self._processes = processes  # of each job
        self._arrays = arrays
        self._jobs: dict[str, Watched] = {}
        self._missing = 0
        self._at_start = False
        self._early = 0
        self._refused = 0
        self._not_before = 0.0
        self._bad_nodes: list[str] = []
        self._given: dict[str, Any] = {}  # options of jobs, before the first of these nodes
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._no_answer = ""
        self._why_after = 0.0
        self._submission: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, jobs: int) -> None:
        """Submit the first jobs and begin to watch; the others are submitted while the first ones work."""
        self._cluster.scheduler.add_plugin(_Arrivals(self._wake.set))
        self._missing, self._at_start = jobs, True
        by_arrays = not self._arrays.refused
        refused = await self._submit_missing(_FIRST)
        if refused is not None and by_arrays and self._arrays.refused and not self._jobs:
            refused = await self._submit_missing(_FIRST)  # one after another they may be taken
        if refused is not None and not self._jobs:
            raise refused
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def resize(self, workers: int) -> None:
        """Have jobs for so many workers: cancel those beyond, or submit those that are missing, with the next look."""
        jobs = math.ceil(workers / self._processes)
        if jobs < len(self._cluster.worker_spec):
            self._cluster.scale(workers)
        else:
            self._missing = jobs - len(self._cluster.worker_spec)
            self._wake.set()

    async def resized(self) -> None:
        """Follow a change of the number of workers: forget the jobs that were still to be submitted."""
        self._missing = 0
        await start_missing(self._cluster)
        self._wake.set()

    async def stop(self) -> None:
        """Stop watching; the jobs stay."""
        self._stopping = True
        if self._submission is not None:  # a job without an id cannot be cancelled
            await asyncio.wait({self._submission})
        if self._task is not None:
            await end_task(self._task)

    def missing(self) -> str:
        """Return the jobs whose workers have not come, with their states and what to look at."""
        jobs = [each for each in list(self._jobs.values()) if not each.up]
        shown = []
        for each in jobs[:_SHOWN]:
            number = str(each.job.job_id)
            tail = self._log_tail(number)
            self.kept_logs = self.kept_logs or bool(tail)
            look = self._scheduler.look.format(id=number)
            shown.append(not_there(f"job {number}", str(each.explained), look, tail))
        return listed(shown, len(jobs) - len(shown), self._no_answer)

    def _log_tail(self, number: str) -> str:
        texts = []
        for path in Outputs(self._scheduler, [self._logs]).of(number):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _BYTES))
                tail = file.read().decode(errors="replace").strip().splitlines()[-_LINES:]
            if tail:
                texts.append("\n".join([f"the end of {path}:", *(f"    {line}" for line in tail)]))
        return "\n".join(texts)

    def has_left(self, worker: str) -> bool | None:
        """Return whether the job of a lost worker is over, or waits again; None: it seems to run."""
        each = self._jobs.get(self._job_of(worker))
        if each is None:
            return True  # no longer among ours: it ended, and was replaced
        gone = each.view.state.is_over or each.view.state is QueueState.WAITING
        return True if gone and not each.up else None

    # --- the loop ---

    async def _watch(self) -> None:
        quick_until = time.monotonic() + 60
        while not self._stopping:
            self._count_workers()
            if self._open():
                before = {name: each.view for name, each in self._jobs.items()}
                await self._ask()
                await self._settle()
                if before != {name: each.view for name, each in self._jobs.items()}:
                    quick_until = time.monotonic() + 60
            if self._due():
                continue
            pause = (_QUICK if time.monotonic() < quick_until else _SLOW) if self._open() else None
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
                quick_until = time.monotonic() + 60
                await asyncio.sleep(0.05)  # the other workers of a job come and go with it
            except asyncio.TimeoutError:
                pass
            self._wake.clear()

    def _open(self) -> bool:
        return any(not each.up for each in self._jobs.values()) or bool(self._missing and not self.broken)

    def _job_of(self, worker: str) -> str:
        return worker if worker in self._jobs else worker.rpartition("-")[0]

    def _count_workers(self) -> None:
        for name in [each for each in self._jobs if each not in self._cluster.worker_spec]:
            del self._jobs[name]  # there was no work for it
        for name, job in self._cluster.workers.items():
            if name not in self._jobs and getattr(job, "job_id", None):
                self._jobs[name] = Watched(job)  # the user asked for more
        up = Counter(self._job_of(str(worker.name)) for worker in self._cluster.scheduler.workers.values())
        for name, each in self._jobs.items():
            if each.up and not up[name]:
                each.left = time.monotonic()
            each.up = up[name]
            if each.up and not each.seen:
                each.seen = True
                self._early = 0

    async def _ask(self) -> None:
        if not self._jobs:
            return
        jobs = {str(each.job.job_id): each for each in self._jobs.values()}
        listing, found = await in_thread(answers, self._scheduler, _ask, list(jobs), history=False)
        self._no_answer = listing.problem if listing.failed else ""
        for job, answer in found.items():
            each = jobs[job]
            each.denied = each.denied + 1 if answer.known is Known.NO_SUCH_JOB else 0
            if each.denied >= _DENIED and time.monotonic() - each.since > _UNKNOWN:
                each.view = GONE
            elif answer.view is not None:
                each.view = answer.view  # a job without an answer keeps its view
        if not listing.failed:  # a scheduler that restarts does not answer: its jobs go on
            await self._ask_why()

    async def _ask_why(self) -> None:
        stuck = any(each.view.state is QueueState.HELD and not each.comment for each in self._jobs.values())
        if self._scheduler.comment is None or (time.monotonic() < self._why_after and not stuck):
            return
        open_states = (QueueState.HELD, QueueState.WAITING)
        waiting = [
            each for each in self._jobs.values() if each.view.state in open_states and not each.view.reason
        ]
        shown = sorted(waiting, key=lambda each: open_states.index(each.view.state))[:_SHOWN]
        jobs = [str(each.job.job_id) for each in shown]
        why = await in_thread(reasons, self._scheduler, _ask, jobs)
        for each, job in zip(shown, jobs, strict=True):
            each.comment = why[job] or each.comment
        self._why_after = time.monotonic() + (_SLOW if any(each.comment for each in waiting) else 4 * _QUICK)

    async def _settle(self) -> None:
        self._count_workers()
        for name, each in list(self._jobs.items()):
            if not each.up and (
                each.view.state.is_over or each.view.state is QueueState.HELD or self._is_away(each)
            ):
                await self._bury(name, each)
        if self._due():
            await self._submit_missing(_NEXT)

    def _is_away(self, each: Watched) -> bool:
        # for minutes, where its node is lost
        runs = each.view.state is QueueState.RUNNING
        return runs and each.seen and not each.up and time.monotonic() - each.left > _AWAY

    def _due(self) -> bool:
        due = (
            self._missing and not self.broken and not self._stopping and time.monotonic() >= self._not_before
        )
        return bool(due) and (self._at_start or self.wanted())

    async def _submit_missing(self, most: int) -> Exception | None:
        refused: Exception | None = None
        before, by_arrays = len(self._jobs), not self._arrays.refused
        part = min(self._missing, _TOGETHER if by_arrays else most)
        self._submission = asyncio.get_running_loop().create_task(self._submit(part))
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
        self._missing = max(0, self._missing - (len(self._jobs) - before))
        self._at_start = self._at_start and self._missing > 0
        if refused is not None and by_arrays and self._arrays.refused:
            logger.warning(
                "a job array was refused, so each worker's job is submitted by itself: %s", refused
            )
        elif refused is not None and (self._jobs or self._task is not None):  # else it is raised
            logger.warning(
                "the scheduler has taken %d of %d jobs, and the run goes on with them; the others are tried again "
                "later. A smaller n_workers asks for fewer: %s",
                len(self._jobs),
                len(self._jobs) + self._missing,
                refused,
            )
        return refused

    async def _bury(self, name: str, each: Watched) -> None:
        del self._jobs[name]
        self._cluster.worker_spec.pop(name, None)
        self._cluster.workers.pop(name, None)
        if not each.view.state.is_over:  # else it could come back
            await each.job.close()
        else:
            each.job.status = type(each.job.status).closed
        self._missing += 1
        away = f", and its worker has been gone for {_AWAY:g} s" if self._is_away(each) else ""
        text = f"job {each.job.job_id} {each.explained}{away}"
        if each.seen or each.view.state is QueueState.EVICTED:
            logger.warning("%s; another one takes its place", text)
            return
        self._at_start = True  # the driver waits for its first workers again
        # on a shared file system its files may appear a moment later
        tail = self._log_tail(str(each.job.job_id))
        if not tail:
            await asyncio.sleep(0.5)
            tail = self._log_tail(str(each.job.job_id))
        look = self._scheduler.look.format(id=each.job.job_id)
        text = f"{text} before its worker came (see: {look})\n{tail}".rstrip()
        self._early += 1
        self.kept_logs = True
        if each.view.node and each.view.node not in self._bad_nodes:
            self._bad_nodes.append(each.view.node)
        logger.warning("%s", text)
        if self._early >= _EARLY:
            self.broken = (
                f"{self._early} jobs in a row ended at their start, so no more are submitted. {text}"
            )
            logger.error("%s", self.broken)

    # --- submission ---

    async def _submit(self, jobs: int) -> None:
        cluster = self._cluster
        if self._bad_nodes and self._scheduler.avoid:
            options = cluster.new_spec["options"]  # of further jobs
            self._given = self._given or dict(options)
            options.update(avoiding(self._scheduler, self._given, self._bad_nodes))
        before = set(cluster.worker_spec)
        add_specs(cluster, jobs)
        try:
            await start_missing(cluster)
        finally:
            for name in set(cluster.worker_spec) - before:
                job = cluster.workers.get(name)
                if job is None or job.job_id is None:
                    cluster.worker_spec.pop(name)
                    cluster.workers.pop(name, None)
                else:
                    self._jobs.setdefault(name, Watched(job))


def came_back(cluster: Any, worker: str, address: str) -> bool:
    """Return whether a lost worker's nanny has started it again, under another address."""
    there = list(cluster.scheduler_info["workers"].items())
    return any(str(each["name"]) == worker and at != address for at, each in there)


async def follow(
    cluster: Any, resize: Callable[[int], Any], wanted: Callable[[], bool], minimum: int, maximum: int
) -> None:
    """Keep a cluster at `maximum` workers while there is work, and at `minimum` after half a minute without.

    Dask's own autoscalers ask its scheduler, which does not know of the chunks that workers pull.
    """
    size, busy = minimum, time.monotonic()
    while cluster.status.name in ("created", "starting", "running"):
        now = time.monotonic()
        busy = now if wanted() else busy
        target = maximum if now == busy else minimum if now - busy > _IDLE else size
        if target != size:
            try:
                await resize(target)
                size = target
            except Exception as error:  # of a server that does not answer: the next look asks again
                logger.warning("the number of workers could not be changed to %d: %s", target, error)
        await asyncio.sleep(_LOOK)

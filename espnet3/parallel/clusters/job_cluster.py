"""Clusters of batch jobs: those of dask-jobqueue, with what they lack.

    options ──prepared──> a cluster ──sbatch, qsub, ...──> jobs ──> workers
                              │ keeper (keeper.py): watches the jobs, replaces them, knows what they do

dask-jobqueue logs a failed submission and waits; it ends the job of a worker that was away for 15
seconds, a requeued one too; and it never replaces a job that is gone. Here a submission that fails
raises, a job belongs to the keeper as long as the queue knows it, and the keeper replaces it.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import distributed
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.backends.backend import asked
from espnet3.parallel.backends.scheduler import NEW, Scheduler
from espnet3.parallel.clusters import options as block_options
from espnet3.parallel.clusters.arrays import array_script
from espnet3.parallel.clusters.keeper import JobKeeper
from espnet3.parallel.clusters.security import PRELOAD, SCRATCH_VARIABLE, certificate_for
from espnet3.parallel.config import DetachedSettings, ParallelConfig
from espnet3.parallel.dask_compat.clusters import KeptCluster, ask_for_certificate, guarded
from espnet3.parallel.errors import ConfigError, of_options
from espnet3.parallel.jobs import commands, script
from espnet3.parallel.jobs.script import Make, quoted_word, scheduler_of

logger = logging.getLogger(__name__)


class _Job(ProcessInterface):
    # mixed into a job class of dask-jobqueue: it quotes its words, and its cluster's keeper submits it
    record: Scheduler
    names: Sequence[str] = ()  # names that the queue may show
    cancelled = False  # all are before Dask closes each of them
    # by its keeper
    since = 0.0  # when it was submitted, by `time.monotonic`
    view = NEW  # by the queue's last answer
    up = 0  # workers of it that are there
    last_up = 0.0  # when one of them was there last; 0.0 before the first
    denied = 0  # times in a row the scheduler has said that it has no such job

    def __init__(
        self, scheduler: Any, name: Any, worker_extra_args: Any = (), security: Any = None, **options: Any
    ) -> None:
        words = list(worker_extra_args)
        if security is not None:
            for part, path in security.get_tls_config_for_role("worker").items():
                if path is not None and part != "ciphers":
                    words += [f"--tls-{part.replace('_', '-')}", quoted_word(path)]
        init: Any = super().__init__  # that of dask-jobqueue
        init(quoted_word(str(scheduler)), quoted_word(str(name)), worker_extra_args=words, **options)
        self.name = name

    def job_script(self) -> str:
        text: str = super().job_script()  # type: ignore[misc]  # as above
        return script.read_by_shell(self.record, text, SCRATCH_VARIABLE)

    async def start(self) -> None:
        await ProcessInterface.start(self)

    async def close(self) -> None:
        self.status = Status.closed
        await commands.cancel_jobs(self.record, [self])


class _JobCluster(KeptCluster, SpecCluster):
    # mixed into a cluster class of dask-jobqueue
    job_cls: Any
    loop: Any

    def __init__(self, *, folder: str | None, config: ParallelConfig, **options: Any) -> None:
        self.folder = folder
        name = options.get("name") or type(self).__name__
        self.names = (f"{name}-{number}" for number in itertools.count(1))
        self.keeper = JobKeeper(self, self.job_cls.record, options["log_directory"], config)
        super().__init__(**options)

    def new_worker_spec(self) -> dict[str, Any]:
        # Dask would use the name of a job that is gone again: it may not be free yet at the scheduler
        return {next(self.names): self.new_spec}

    def scale(self, *args: Any, **kwargs: Any) -> Any:
        done = super().scale(*args, **kwargs)
        if self.status is Status.running:
            self.loop.add_callback(self.keeper.resized)
        return done

    async def before_closing(self) -> None:
        await self.keeper.stop()
        await commands.cancel_jobs(self.job_cls.record, list(self.workers.values()))

    async def after_closing(self) -> None:
        if self.folder is not None and not self.keeper.kept_logs:
            shutil.rmtree(self.folder, ignore_errors=True)
        await super().after_closing()


def watched_cluster(row: Backend) -> Any:
    """Return the class of a scheduler's clusters whose jobs are watched."""
    base: Any = load_cluster_class(row)
    job = type(base.job_cls.__name__, (_Job, base.job_cls), {"record": scheduler_of(row.name)})
    return type(base.__name__, (_JobCluster, base), {"job_cls": job})


def _one_of(row: Backend, config: ParallelConfig, job_class: Any, options: Any) -> tuple[Any, int, Make]:
    # one job, how many of them the workers are, and what makes another one
    for_job = script.of_each_job(options)
    make = cache(lambda **new: job_class("tcp://SCHEDULER:PORT", name="WORKER-1", **{**for_job, **new}))
    job = make()
    commands.refuse_elsewhere(row.name, scheduler_of(row.name), job.submit_command, job.job_script())
    return job, math.ceil(config.n_workers / job.worker_processes), make


def start_jobs(row: Backend, config: ParallelConfig) -> Any:
    """Start the scheduler here and submit the jobs; return without waiting for a worker."""
    make = watched_cluster(row)
    options = dict(config.options)
    if wrong := block_options.problems_here(row, options):
        raise ConfigError("\n".join(wrong))
    with ExitStack() as undo:
        folder = block_options.prepare(row, options)
        if folder is not None:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        shared = asked(row, options, "shared_temp_directory") or ""
        keys = os.path.expanduser(os.path.expandvars(shared))
        certificate = certificate_for(options, config.security, "this machine or the nodes", keys)
        if certificate is not None:
            undo.callback(shutil.rmtree, certificate, ignore_errors=True)
            options["protocol"] = "tls://"
            scheduler_class = options.get("scheduler_cls") or distributed.Scheduler
            options["scheduler_cls"] = guarded(scheduler_class, ask_for_certificate)
            options["worker_extra_args"] += ["--preload", PRELOAD]
        cluster = make(folder=folder, config=config, certificate=certificate, **options)
        undo.callback(cluster.close)
        job, jobs, _ = _one_of(row, config, make.job_cls, options)
        if (processes := job.worker_processes) > 1:
            # a warning, so that it is seen: many take n_workers for jobs
            logger.warning("n_workers = %d with processes = %d: %d jobs", config.n_workers, processes, jobs)
        if config.adapt is not None:
            jobs = math.ceil(config.adapt["minimum"] / processes)
        cluster.sync(cluster.keeper.start, jobs)
        undo.pop_all()
    return cluster


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The jobs of a configuration, and the command that would submit them."""

    jobs: int
    workers_per_job: int
    elements: int  # jobs that one submission takes, as a job array; a site may allow less
    command: str
    script: str  # with placeholders in capitals for what is known at the start only
    warnings: tuple[str, ...] = ()  # reasons why this machine cannot start such a run, where another one may
    remarks: tuple[str, ...] = ()  # facts that a person may not expect


def plan_jobs(row: Backend, config: ParallelConfig) -> JobPlan:
    """Return what a configuration of a batch scheduler would submit; nothing is left behind."""
    job_class = watched_cluster(row).job_cls
    options = dict(config.options)
    given = options.get("log_directory")
    warnings = block_options.problems_here(row, options)
    with of_options(row.name), tempfile.TemporaryDirectory() as logs:
        if problem := script.log_folder_problem(row, given, detached=False):
            raise ConfigError(problem)
        options["log_directory"] = logs  # a job makes its own when it is built
        block_options.prepare(row, options)
        job, jobs, make = _one_of(row, config, job_class, options)
        factor = DetachedSettings(**config.detached).retry_memory_factor
        said = script.defaults(row, config.options, make)
        said += script.memory_stays(row, config.options, make, factor)
        text = job.job_script()
        scheduler, array = scheduler_of(row.name), None
        if (elements := min(jobs, scheduler.usual_array)) > 1:
            array = array_script(scheduler, job, elements)
        text = (array or text).replace(logs, os.path.expanduser(given) if given else "LOGS")
    command = f"{job.submit_command.strip()} {'< ' if getattr(job, 'use_stdin', None) else ''}SCRIPT"
    each = job.worker_processes, elements if array else 1
    return JobPlan(jobs, *each, command, text, tuple(warnings), tuple(said))

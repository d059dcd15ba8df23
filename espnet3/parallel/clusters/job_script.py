"""What a configuration would submit, without submitting it: the job script and the command."""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass

from espnet3.parallel.backends import Backend
from espnet3.parallel.backends.loading import parameters
from espnet3.parallel.clusters.arrays import array_script
from espnet3.parallel.clusters.commands import refuse_elsewhere
from espnet3.parallel.clusters.jobs import watched_cluster
from espnet3.parallel.clusters.options import check_log_folder, interface_problems, prepare
from espnet3.parallel.config import ParallelConfig

# What dask-jobqueue's cluster keeps for itself; the rest goes to each job.
_CLUSTER = "dask_jobqueue.core:JobQueueCluster.__init__"
_SHARED = ("interface", "protocol", "config_name")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What would be submitted.

    Attributes:
        jobs: How many jobs.
        workers_per_job: Worker processes of each.
        elements: How many of the jobs one submission takes, as a job array; 1: each has one of its own. A site may
            allow less.
        command: The command that submits one.
        script: The job script, with placeholders in capitals for what is known at the start only.
        warnings: What keeps this machine from starting such a run; another one may.
    """

    jobs: int
    workers_per_job: int
    elements: int
    command: str
    script: str
    warnings: tuple[str, ...] = ()


def plan_jobs(row: Backend, config: ParallelConfig) -> JobPlan:
    """Return what a configuration of a batch scheduler would submit; nothing is left behind."""
    job_class = watched_cluster(row).job_cls
    options = dict(config.options)
    given = options.get("log_directory")
    warnings = interface_problems(row, options)
    with tempfile.TemporaryDirectory() as folder:
        logs = os.path.join(folder, "logs")
        check_log_folder(row, given or os.getcwd())
        options["log_directory"] = logs  # a job makes its folder when it is built
        prepare(row, options)
        for_cluster = set(parameters(_CLUSTER) or ()) - set(_SHARED)
        for_job = {name: value for name, value in options.items() if name not in for_cluster}
        job = job_class("tcp://SCHEDULER:PORT", name="WORKER-1", **for_job)
        processes = job.worker_processes
        jobs = math.ceil(config.n_workers / processes)
        script = job.job_script()
        assert row.scheduler is not None
        refuse_elsewhere(row.name, row.scheduler, job.submit_command, script)
        elements = min(jobs, row.scheduler.largest_array())
        array = (
            array_script(row.scheduler, script, job.name, job.job_name, elements) if elements > 1 else None
        )
        script = array or script
        script = script.replace(logs, given or "LOGS")
    command = f"{job.submit_command.strip()} {'< ' if getattr(job, 'use_stdin', None) else ''}SCRIPT"
    return JobPlan(jobs, processes, elements if array else 1, command, script, tuple(warnings))

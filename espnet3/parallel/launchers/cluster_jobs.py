"""Clusters of batch jobs: dask-jobqueue's own, with what it lacks.

    options ──prepared──> JobCluster ──sbatch, qsub, ...──> jobs ──> workers
                              │ keeper (cluster_keeper): watches the jobs, replaces and explains them

dask-jobqueue logs a failed submission and waits; it ends the job of a worker that was away for 15
seconds, a requeued one too; and it never replaces a job that is gone. Here a submission that fails
raises, a job belongs to the keeper as long as the queue knows it, and the keeper replaces it.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import shutil
import socket
import tempfile
from typing import Any

import dask
import psutil
from distributed.core import Status
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster

from espnet3.parallel.backends import load_cluster_class
from espnet3.parallel.backends.amounts import clock, is_clock, walltime_seconds
from espnet3.parallel.backends.table import Backend
from espnet3.parallel.backends.wording import did_you_mean
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.launchers.cluster_commands import call
from espnet3.parallel.launchers.cluster_keeper import JobKeeper
from espnet3.parallel.security import RunCertificate, all_loopback, make_certificate

logger = logging.getLogger(__name__)

_LAST_CALL = 0.1  # of the walltime, at most five minutes: what a worker has to finish its item


def watched_job(job_class: Any) -> Any:
    """Return a job class like this one, whose commands are awaited by `call` and whose end shows."""

    class WatchedJob(job_class):  # type: ignore[misc]  # one class for each scheduler, made when needed
        _call = staticmethod(call)

        async def start(self) -> None:
            """Submit the job."""
            try:
                await super().start()
            except BaseException:
                self.status = Status.failed
                raise

        async def close(self) -> None:
            """Cancel the job; one that is gone already is not an error."""
            try:
                await super().close()
            finally:
                self.status = Status.closed

    WatchedJob.__name__ = WatchedJob.__qualname__ = job_class.__name__
    return WatchedJob


def watched_cluster(row: Backend) -> Any:
    """Return the row's cluster class with jobs that are watched."""
    base: Any = load_cluster_class(row)

    class JobCluster(base):  # type: ignore[misc]  # one class for each scheduler, made when needed
        job_cls = watched_job(base.job_cls)
        keeper: JobKeeper | None = None
        folder: str | None = None
        certificate: RunCertificate | None = None

        def _update_worker_status(self, op: str, msg: Any) -> None:
            # SpecCluster's would cancel, after 15 s, the job of a worker that has gone: a requeued
            # job too. The keeper asks the queue instead.
            Cluster._update_worker_status(self, op, msg)

        def failure(self) -> str | None:
            """Return why no worker will come, once that is known."""
            return None if self.keeper is None else self.keeper.broken

        def exit_of(self, pid: int) -> str | None:
            """Jobs do not say how a process of theirs ended."""
            return None

        def went_with_job(self, worker: str, address: str) -> bool | None:
            """Tell whether a lost worker went because its job ended; None: not known yet."""
            if any(
                str(each["name"]) == worker and there != address
                for there, each in list(self.scheduler_info["workers"].items())
            ):
                return False  # its nanny has started it again: the job goes on
            return None if self.keeper is None else self.keeper.has_left(worker)

        def waiting(self) -> str:
            """Say of each job what it does and what to look at."""
            return "" if self.keeper is None else self.keeper.report()

        async def _close(self) -> None:
            if self.keeper is not None:
                await self.keeper.stop()
            try:
                await super()._close()
            finally:
                bad = self.keeper is not None and self.keeper.kept_logs
                _clean_up(None if bad else self.folder, self.certificate)

    JobCluster.__name__ = JobCluster.__qualname__ = base.__name__
    return JobCluster


def _clean_up(folder: str | None, certificate: RunCertificate | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if certificate is not None:
        certificate.remove()


class WorkAdaptive(Adaptive):
    """Dask's way to follow the load, which sees its own tasks only, with an eye on the pilots' work."""

    cluster: Any  # a JobCluster

    async def target(self) -> int:
        """Return how many workers there should be: as many as allowed while items wait."""
        keeper: JobKeeper = self.cluster.keeper
        return int(self.maximum if keeper.wanted() else await super().target())

    async def scale_up(self, n: Any) -> None:
        """Submit what is missing, by way of the keeper."""
        await self.cluster.keeper.grow_to(math.ceil(n / self.cluster._dummy_job.worker_processes))


def start_jobs(row: Backend, config: ParallelConfig) -> Any:
    """Start the scheduler here and submit the jobs; return without waiting for a worker.

    Raises:
        ConfigError: An option does not fit this machine.
        MissingPackageError: dask-jobqueue is not installed.
        SubmissionError: A job could not be submitted; what had been is cancelled.
    """
    make = watched_cluster(row)
    options = dict(config.options)
    folder = _prepare(row, options)
    cluster = None
    certificate = None
    try:
        certificate = _secure(row, options, config.security)
        cluster = make(**options)
        cluster.certificate = certificate
        cluster.folder = folder
        processes = cluster._dummy_job.worker_processes
        jobs = math.ceil(config.n_workers / processes)
        if processes > 1:
            logger.warning(
                "n_workers = %d with processes = %d: %d jobs", config.n_workers, processes, jobs
            )  # a warning, so that it is seen: many take n_workers for jobs
        cluster.keeper = JobKeeper(cluster, row, logs=cluster._job_kwargs.get("log_directory"))
        if config.adapt is None:
            cluster.sync(cluster.keeper.start, jobs)
        else:
            cluster.keeper.adaptive = True
            cluster.sync(cluster.keeper.start, math.ceil(config.adapt["minimum"] / processes))
            cluster.adapt(Adaptive=WorkAdaptive, **config.adapt)
    except BaseException as error:
        if cluster is not None:
            cluster.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if (
            isinstance(error, RuntimeError)
            and error.__cause__ is not None
            and "failed to start" in str(error)
        ):
            raise ConfigError(f"the scheduler of the workers cannot start here: {error.__cause__}") from error
        raise
    return cluster


def _secure(row: Backend, options: dict[str, Any], security: str) -> RunCertificate | None:
    """Add a certificate of the run to the options, unless all is on this machine or the user has his own."""
    if options.get("security") is not None or options.get("protocol") is not None:
        return None
    scheduler = options["scheduler_options"]
    section = options.get("config_name") or row.name
    interface = scheduler.get("interface") or options.get("interface")
    interface = interface or dask.config.get(f"jobqueue.{section}.interface", None)
    if scheduler.get("host"):
        addresses = [str(scheduler["host"])]
    else:
        there = psutil.net_if_addrs().get(interface, [])
        addresses = [each.address for each in there if each.family in (socket.AF_INET, socket.AF_INET6)]
    here = bool(addresses) and all_loopback(addresses)
    if security == "off" and not here:
        logger.warning("security is off: whoever reaches this machine can run code in the workers")
    if security == "off" or (security == "auto" and here):
        return None
    shared = options.get("shared_temp_directory")
    shared = shared or dask.config.get(f"jobqueue.{section}.shared-temp-directory", None) or os.getcwd()
    certificate = make_certificate(os.path.expanduser(os.path.expandvars(shared)))
    options.update(security=certificate.security, protocol="tls://")
    return certificate


# --- options as dask-jobqueue wants them ----------------------------------------------------------


def _prepare(row: Backend, options: dict[str, Any]) -> str | None:
    """Complete the options in place; return the folder made for the jobs' logs, if one was."""
    section = options.get("config_name") or row.name

    def site(name: str, default: Any = None) -> Any:
        found = options.get(name)
        return dask.config.get(f"jobqueue.{section}.{name}", default) if found is None else found

    _check_interface(site("interface"), "options.interface")
    scheduler = dict(site("scheduler-options") or options.get("scheduler_options") or {})
    scheduler.update(options.get("scheduler_options") or {})
    _check_interface(scheduler.get("interface"), "options.scheduler_options.interface")
    # Dask's own is :8787 on every interface
    scheduler.setdefault("dashboard_address", "127.0.0.1:0")
    options["scheduler_options"] = scheduler
    options["processes"] = site("processes") or 1

    lifetime = _lifetime(row, options, site("walltime"))
    extra = list(options.get("worker_extra_args") or site("worker-extra-args", []))
    if lifetime is not None and not any(str(word).startswith("--lifetime") for word in extra):
        extra += ["--lifetime", f"{lifetime}s", "--lifetime-stagger", f"{max(1, lifetime // 50)}s"]
    options["worker_extra_args"] = extra

    if row.queue is not None and row.queue.avoid:  # the keeper adds to them
        options["job_extra_directives"] = list(
            options.get("job_extra_directives") or site("job-extra-directives", [])
        )
    prologue = list(options.get("job_script_prologue") or site("job-script-prologue", []))
    here = shlex.quote(os.getcwd())
    # jobs of some schedulers start at home; the folder may be missing on a node, and not be needed
    options["job_script_prologue"] = [f"cd {here} || true", *prologue]
    return _log_folder(row, options, options.get("log_directory") or site("log-directory"))


def _check_interface(name: Any, where: str) -> None:
    there = psutil.net_if_addrs()
    if name is not None and name not in there:
        raise ConfigError(
            f"{where} = {name!r}: this machine has no such network interface.{did_you_mean(name, there)} "
            f"It has {', '.join(sorted(there))}"
        )


def _lifetime(row: Backend, options: dict[str, Any], walltime: Any) -> int | None:
    """Write the walltime as the scheduler reads it; return the seconds a worker takes new work."""
    if walltime is None or row.name == "htcondor":
        return None
    seconds = walltime_seconds(walltime, minutes_last=row.minutes_last)
    if seconds is None:
        return None
    if options.get("walltime") is not None and (not is_clock(walltime) or row.name == "lsf"):
        options["walltime"] = clock(seconds, short=row.name == "lsf")
    return max(1, int(seconds - min(300, _LAST_CALL * seconds + 5)))


def _log_folder(row: Backend, options: dict[str, Any], wanted: Any) -> str | None:
    """Have the jobs write to a folder: the one that is wanted, or a new one beside the caller."""
    made = None
    try:
        if wanted is None:
            made = wanted = tempfile.mkdtemp(prefix=f"espnet3-{row.name}-", dir=os.getcwd())
        else:
            wanted = os.path.abspath(os.path.expanduser(str(wanted)))
            os.makedirs(wanted, exist_ok=True)
        if not os.access(wanted, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        place = f"options.log_directory = {wanted!r}" if wanted else f"options.log_directory ({os.getcwd()})"
        raise ConfigError(
            f"{place}: jobs cannot write their logs there: {error.strerror}; name a folder that you may "
            "write to and that the nodes see"
        ) from error
    options["log_directory"] = wanted
    if row.logs:
        directives = options.get("job_extra_directives") or []
        options["job_extra_directives"] = [*(line.format(folder=wanted) for line in row.logs), *directives]
    return made

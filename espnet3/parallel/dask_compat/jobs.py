"""What dask-jobqueue does not document of its jobs and its clusters, and this package needs."""

from __future__ import annotations

from typing import Any


class OwnCommands:
    """Mixin for a `Job` of dask-jobqueue, whose submit command is run by us: `Job._call`."""

    @classmethod
    async def run_command(cls, command: list[str], *, shell: bool = False) -> Any:
        """Run the command that submits a job, by way of a shell if `shell`, and return what it said."""
        raise NotImplementedError

    @classmethod
    async def _call(cls, cmd: Any, *, shell: bool = False, **_: Any) -> Any:
        return await cls.run_command(cmd, shell=shell)


class OwnCertificate:
    """Mixin for a `JobQueueCluster` whose jobs' words name a certificate: `JobQueueCluster._get_worker_security`.

    It would write the one in memory to files that only it knows.
    """

    certificate: Any = None

    def _get_worker_security(self, security: Any) -> Any:
        if self.certificate is not None:
            return None
        return super()._get_worker_security(security)  # type: ignore[misc]  # mixed into one that has it


def processes_per_job(cluster: Any) -> int:
    """Return how many worker processes each job of a cluster has: `JobQueueCluster._dummy_job`."""
    processes: int = cluster._dummy_job.worker_processes
    return processes


def submission_of(cluster: Any) -> tuple[str, str]:
    """Return a cluster's submit command and the script of such a job: `JobQueueCluster._dummy_job`."""
    job = cluster._dummy_job
    return job.submit_command, job.job_script()


def log_folder_of(cluster: Any) -> str | None:
    """Return the folder that a cluster's jobs write their logs to: `JobQueueCluster._job_kwargs`."""
    folder: str | None = cluster._job_kwargs.get("log_directory")
    return folder


def options_of_next_jobs(cluster: Any) -> dict[str, Any]:
    """Return the options that further jobs are made with, to be changed in place: `SpecCluster.new_spec`."""
    options: dict[str, Any] = cluster.new_spec["options"]
    return options


def prologue_of(job: Any) -> tuple[str, ...]:
    """Return the lines that a job's script begins with: `Job._job_script_prologue`."""
    return tuple(job._job_script_prologue or ())


async def submit_job(job: Any) -> Any:
    """Submit a job's script and return what `run_command` did: `Job.job_file`, `Job._submit_job`."""
    with job.job_file() as file:
        return await job._submit_job(file)

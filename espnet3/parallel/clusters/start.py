"""The start of any cluster whose workers are not our own processes of this machine."""

from __future__ import annotations

import logging
import resource
from typing import Any

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

_FILES = 4  # open files of the driver for each worker, beside one for each of its threads
_OWN_FILES = 256  # open files of the driver for everything else
_THREADS = 16  # threads of a worker whose options give no number


def open_cluster(config: ParallelConfig) -> Any:
    """Start the cluster of a `parallel` block; return without waiting for workers.

    Args:
        config: The checked block, whose workers are not our own processes of this machine.

    Raises:
        ConfigError: An option does not fit this machine.
        MissingPackageError: The backend's package is not installed.
        SubmissionError: A scheduler refused a job.
    """
    make_room(config)
    row = BACKENDS[config.env]
    if row.kind is Kind.BATCH:
        from espnet3.parallel.clusters.jobs import start_jobs

        return start_jobs(row, config)
    if row.kind is Kind.SSH:
        from espnet3.parallel.clusters.ssh import start_ssh

        return start_ssh(row, config)
    if row.kind is Kind.KUBERNETES:
        from espnet3.parallel.clusters.kube import start_kube

        return start_kube(row, config)
    from espnet3.parallel.clusters.gpu import start_dask_cuda

    return start_dask_cuda(row, config)


def make_room(config: ParallelConfig) -> None:
    """Raise this process's limit of open files to what its workers take, as Dask's scheduler command does.

    Many systems start a process with a limit of 1024, which is two hundred workers.
    """
    workers = max(config.n_workers, (config.adapt or {}).get("maximum", 0))
    threads = _THREADS
    if BACKENDS[config.env].scheduler and config.options.get("cores"):
        threads = config.options["cores"] // (config.options.get("processes") or 1)
    need = _OWN_FILES + workers * (_FILES + threads)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    enough = hard == resource.RLIM_INFINITY or need <= hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (need if enough else hard, hard))
    if not enough:
        logger.warning(
            "%d workers take about %d open files here, and the limit is %d: those beyond it cannot connect. "
            "Raise it (ulimit -Hn), or ask for fewer workers with more processes or threads each",
            workers,
            need,
            hard,
        )

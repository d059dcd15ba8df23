"""Clusters that are not local: one way in, whatever starts their workers."""

from __future__ import annotations

from typing import Any

from espnet3.parallel.backends import BACKENDS, load_cluster_class
from espnet3.parallel.config import ParallelConfig


def open_cluster(config: ParallelConfig) -> Any:
    """Start the cluster of a `parallel` block; workers come when they come.

    Args:
        config: The checked block, whose `env` is not `local`.

    Raises:
        ConfigError: An option does not fit this machine.
        MissingPackageError: The backend's package is not installed.
        SubmissionError: A scheduler refused a job.
    """
    row = BACKENDS[config.env]
    if row.queue is not None:
        from espnet3.parallel.launchers.cluster_jobs import start_jobs

        return start_jobs(row, config)
    if row.name == "ssh":
        from espnet3.parallel.launchers.cluster_ssh import start_ssh

        return start_ssh(row, config)
    make = load_cluster_class(row)
    options = dict(config.options)
    if row.name == "kube":
        cluster = make(**options)
        cluster.scale(config.n_workers)
        return cluster
    return make(n_workers=config.n_workers, **options)

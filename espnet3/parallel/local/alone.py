"""Tell which workers are our own processes of this machine, and when a single one can be the calling process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.backends.backend import GPU_VARIABLE
from espnet3.parallel.backends.table import WITHOUT_DASK
from espnet3.parallel.config import ParallelConfig

# Options of `LocalCluster` that the calling process keeps anyway, and with which values; any other asks for a worker
_KEPT: dict[str, Callable[[Any], bool]] = {
    "threads_per_worker": lambda value: value == 1,  # None is as many threads as there are cores
    "memory_limit": lambda value: value in (None, 0, "auto"),
    "dashboard_address": lambda value: value is None,
    "processes": lambda value: value is False,
    "silence_logs": lambda value: True,  # about Dask's own log lines, of which there are none
}


def alone(config: ParallelConfig) -> bool:
    """Whether a block means the calling process: local, one worker, no option that needs a process."""
    if config.env != "local" or config.n_workers != 1:
        return False
    return all(name in _KEPT and _KEPT[name](value) for name, value in config.options.items())


def own_processes(config: ParallelConfig) -> bool:
    """Whether a block's workers are our own: `local`, and `local_gpu` without options that only dask-cuda takes."""
    kind = BACKENDS[config.env].kind
    if kind is not Kind.GPU:
        return kind is Kind.LOCAL
    from espnet3.parallel.backends.gpus import only_dask_cuda

    return not only_dask_cuda(config.options)


def without_dask(config: ParallelConfig) -> bool:
    """Whether a block's workers can be processes without Dask: on this machine, without options of Dask's own."""
    options = config.options
    return (
        own_processes(config)
        and options.get("processes", True) is not False
        and all(
            name in WITHOUT_DASK
            or name == GPU_VARIABLE
            or (name == "dashboard_address" and options[name] is None)
            for name in options
        )
    )

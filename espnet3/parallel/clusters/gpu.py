"""One worker for each GPU of this machine: dask-cuda's cluster, on GPUs that exist."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.backends.gpus import Gpu, check_gpus, gpus_of_machine
from espnet3.parallel.clusters.security import PRELOAD, local_security
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.local.pages import PrivatePages, new_secret

logger = logging.getLogger(__name__)


def start_gpus(row: Backend, config: ParallelConfig) -> Any:
    """Start the scheduler and the workers.

    Raises:
        ConfigError: There are fewer visible GPUs than workers.
        MissingPackageError: dask-cuda or nvidia-ml-py is not installed.
    """
    make: Any = load_cluster_class(row)
    options = gpu_options(config)
    given, private = local_security(config)
    if "security" in given:
        options["security"] = given["security"]
        options["preload"] = [*options.get("preload", []), PRELOAD]  # for the pages of workers

    class GpuCluster(make, PrivatePages):  # type: ignore[misc]  # a class that is loaded here
        pages = new_secret() if private else None

    return GpuCluster(**options)


def gpu_options(config: ParallelConfig) -> dict[str, Any]:
    """Return what dask-cuda's cluster is made with.

    Raises:
        ConfigError: As `start_gpus`.
        MissingPackageError: nvidia-ml-py is not installed.
    """
    options = dict(config.options)
    given = options.pop("CUDA_VISIBLE_DEVICES", None)
    variable = os.environ.get("CUDA_VISIBLE_DEVICES") if given is None else _joined(given)
    visible, warning = check_gpus(gpus_of_machine(), variable, config.n_workers)
    if warning is not None:
        logger.warning("%s", warning)
    if options.get("dashboard_address", "") is None:  # the user wants none
        options["scheduler_kwargs"] = {**(options.get("scheduler_kwargs") or {}), "dashboard": False}
    options["preload_nanny"] = [*(options.get("preload_nanny") or []), PRELOAD]
    for name in ("dashboard_address", "worker_dashboard_address"):
        if options.get(name) is None:  # Dask's default is every interface
            options[name] = "127.0.0.1:0"
    return {**options, "n_workers": config.n_workers, "CUDA_VISIBLE_DEVICES": devices(visible)}


def devices(gpus: Sequence[Gpu]) -> list[int] | list[str]:
    """Return GPUs in one form, all numbers or all names, because dask-cuda sorts them."""
    if any(gpu.is_part for gpu in gpus):
        return [gpu.uuid for gpu in gpus]
    return [gpu.index for gpu in gpus]


def _joined(given: Any) -> str:
    return ",".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)

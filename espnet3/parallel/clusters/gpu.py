"""One worker for each GPU of this machine: dask-cuda's cluster, on GPUs that exist."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.backends.gpus import Gpu, check_gpus, gpus_of_machine
from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)


def start_gpus(row: Backend, config: ParallelConfig) -> Any:
    """Start the scheduler and the workers.

    Raises:
        ConfigError: There are fewer visible GPUs than workers.
        MissingPackageError: dask-cuda or nvidia-ml-py is not installed.
    """
    make = load_cluster_class(row)
    return make(**gpu_options(config))


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
    options.setdefault("dashboard_address", "127.0.0.1:0")  # Dask's default is port 8787 on every interface
    return {**options, "n_workers": config.n_workers, "CUDA_VISIBLE_DEVICES": devices(visible)}


def devices(gpus: Sequence[Gpu]) -> list[int] | list[str]:
    """Return GPUs in one form, all numbers or all names, because dask-cuda sorts them."""
    if any(gpu.is_part for gpu in gpus):
        return [gpu.uuid for gpu in gpus]
    return [gpu.index for gpu in gpus]


def _joined(given: Any) -> str:
    return ",".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)

"""One worker for each GPU of this machine by dask-cuda's cluster, for options that only it understands."""

from __future__ import annotations

from typing import Any

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.backends.backend import GPU_VARIABLE
from espnet3.parallel.backends.gpus import chosen_gpus
from espnet3.parallel.clusters.security import PRELOAD, local_security
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat.servers import nannies_without_main
from espnet3.parallel.local.pages import PrivatePages, new_secret


def start_dask_cuda(row: Backend, config: ParallelConfig) -> Any:
    """Start the scheduler and the workers."""
    options = gpu_options(config)
    make: Any = load_cluster_class(row)
    nannies_without_main()
    given, private = local_security(config)
    if "security" in given:
        options["security"] = given["security"]
        options["preload"] = [*options.get("preload", []), PRELOAD]  # for the pages of workers

    class GpuCluster(make, PrivatePages):  # type: ignore[misc]  # a class that is loaded here
        pages = new_secret() if private else None

    return GpuCluster(**options)


def gpu_options(config: ParallelConfig) -> dict[str, Any]:
    """Return what dask-cuda's cluster is made with."""
    options = dict(config.options)
    gpus = chosen_gpus(options, config.n_workers)
    numbers = [int(gpu) if gpu.isdigit() else gpu for gpu in gpus]  # dask-cuda tells them from names by type
    if options.get("dashboard_address", "") is None:  # the user wants none
        options["scheduler_kwargs"] = {**(options.get("scheduler_kwargs") or {}), "dashboard": False}
    options["preload_nanny"] = [*(options.get("preload_nanny") or []), PRELOAD]
    for name in ("dashboard_address", "worker_dashboard_address"):
        if options.get(name) is None:  # Dask's default is every interface
            options[name] = "127.0.0.1:0"
    return {**options, "n_workers": config.n_workers, GPU_VARIABLE: numbers}

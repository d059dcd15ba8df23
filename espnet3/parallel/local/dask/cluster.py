"""`env: local`: a real `LocalCluster` whose workers, for plain calls, are forked by our own server.

Two things differ from Dask's default, a nanny that spawns: a worker starts in milliseconds without importing the
caller's main module, and one that dies is replaced at once under its old name. With `processes: false` they are threads
of this process. Items run in processes of our own either way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import LocalCluster, Worker
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from espnet3.parallel.backends import BACKENDS, Kind
from espnet3.parallel.backends.machine import chosen_gpus, gpu_env, processors
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat.clusters import KeptCluster, give_up_cluster
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.local.fork_server import boot_of, take_server
from espnet3.parallel.local.pages import PrivatePages, behind_secret, new_secret
from espnet3.parallel.local.supervisor import GRACE, MemoryWatch, Supervised, SupervisedCluster, Supervisor
from espnet3.parallel.local.workers import OwnWorkers
from espnet3.parallel.pilots.pool import Pool

# each imports its dashboard: a second thread could go on with a module whose import is unfinished, or has failed
_ONE_BY_ONE = threading.Lock()

# Dask's periodic work costs 2 to 4 points of efficiency on two cores, and pilots need none of it.
# A value the user set (file, environment, dask.config.set) stays.
QUIET: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    # Dask's look at GPUs takes the first word of CUDA_VISIBLE_DEVICES for a number or a whole UUID, and fails on others
    "distributed.diagnostics.nvml": False,
}


def _forked() -> None:
    global _ONE_BY_ONE  # noqa: PLW0603  a lock that is held cannot be mended
    _ONE_BY_ONE = threading.Lock()  # the parent's may be held


os.register_at_fork(after_in_child=_forked)


class ForkedWorker(ProcessInterface):
    """One local worker process, replaced when it dies; a `SpecCluster` worker, and the owner of what is supervised."""

    def __init__(
        self,
        scheduler: str,
        *,
        name: Any,
        supervisor: Supervisor,
        pages: str | None = None,  # the secret that its HTTP pages ask for; None leaves them open
        gpus: Sequence[str] = (),  # the workers share them out: this one's is that of its number
        memory_limit: Any = "auto",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.name = name
        self._supervisor = supervisor
        self._env = {str(k): str(v) for k, v in (env or {}).items()}
        if gpus:  # else a name need not be a number
            self._env |= gpu_env(gpus, int(name))
        threads = options.get("nthreads") or 1
        self._memory = MemoryWatch(memory_limit, threads)
        address = options.get("dashboard_address") or "127.0.0.1:0"  # else it is on the workers' interface
        options |= {"name": name, "memory_limit": self._memory.limit, "dashboard_address": address}
        self._boot = {"scheduler": scheduler, "options": options, "pages": pages}
        self._supervised: Supervised | None = None
        self._started: Future[None] = Future()
        self._stopped: Future[None] = Future()

    async def start(self) -> None:
        """Have a process started, and wait until its worker is registered with the scheduler.

        A process that ends while it starts, without an error of its own, was killed: another is started.
        """
        boot = boot_of(self._env, config=dask.config.config, **self._boot)
        self._supervised = self._supervisor.add(str(self.name), boot, self._memory, self)
        await asyncio.shield(asyncio.wrap_future(self._started))
        await super().start()

    # --- called by the supervisor, in its thread ---

    def started(self, answer: Mapping[str, Any]) -> None:
        """Take note that its process is up: a worker of the scheduler's."""
        self.address = answer["address"]
        if not self._started.done():
            self._started.set_result(None)

    def ended(self, process: Supervised) -> None:
        """Take note that its process has ended, or is stopped."""
        if process.stopped and not self._stopped.done():
            self._stopped.set_result(None)
        # a start that failed by an error of its own would fail again; a later end may be chance
        over = process.stopped or process.given_up or process.refused
        if over and not self._started.done():
            self._started.set_exception(NoWorkersError(process.failure or f"worker {self.name} was stopped"))

    async def close(self) -> None:
        """Ask the worker to stop; after two seconds, and for all that it started, SIGKILL."""
        if self.status != Status.closed:
            self.status = Status.closing
            if self._supervised is not None:
                self._supervisor.stop(self._supervised)
                await asyncio.wait({asyncio.wrap_future(self._stopped)}, timeout=2 * GRACE)
        await super().close()


class ForkedCluster(KeptCluster, LocalCluster, PrivatePages, SupervisedCluster):
    """A `LocalCluster` of `ForkedWorker`s, or of threads of this process, and processes for items beside them.

    It ends their supervisor, and its fork server, when it closes.
    """

    def __init__(self, config: ParallelConfig, *, processes: bool, **options: Any) -> None:
        self.supervisor = Supervisor(take_server(dask=processes))
        self.pages = new_secret(config)
        self._config = config
        self._own: OwnWorkers | None = None
        if processes:
            options |= {"worker_class": ForkedWorker, "supervisor": self.supervisor, "pages": self.pages}
        else:
            options.setdefault("worker_class", behind_secret(Worker, self.pages))
        try:
            super().__init__(processes=processes, **options)
        except BaseException:  # Ctrl-C too: a half-started cluster cannot be closed, only dropped
            drop(self)
            raise

    @property
    def dashboard_link(self) -> str:
        """The base's link, on loopback where it is there: Dask names this host for an `inproc` scheduler."""
        link: str = super().dashboard_link
        host, here = urlsplit(self.scheduler_address).hostname, "127.0.0.1:"
        is_here = str(self.scheduler_spec["options"]["dashboard_address"]).startswith(here)
        return link.replace(f"//{host}:", f"//{here}", 1) if is_here else link

    def open_pool(self) -> Pool:
        """Start as many processes for items, under the same supervisor, and return the pool of their slots."""
        with _ONE_BY_ONE:
            self._own = self._own or OwnWorkers(len(self.worker_spec), self._config, self.supervisor)
        return self._own.pool

    def scale(self, *args: Any, **kwargs: Any) -> Any:
        """Do as `LocalCluster.scale`; there are as many processes for items, and not fewer than before."""
        done = super().scale(*args, **kwargs)
        if self._own is not None:
            self._own.most = len(self.worker_spec)
            self._own.grow()
        return done

    async def before_closing(self) -> None:
        """End the workers first: Dask would retire them, and they would then log that their scheduler is lost."""
        await asyncio.gather(*(worker.close() for worker in list(self.workers.values())))

    async def after_closing(self) -> None:
        """End the supervisor, which ends the processes for items and the fork server."""
        await asyncio.get_running_loop().run_in_executor(None, self.supervisor.close)


def drop(cluster: LocalCluster) -> None:
    """Give up a cluster that is half started or half closed, so that Dask does not wait for it at exit."""
    give_up_cluster(cluster)
    if isinstance(cluster, ForkedCluster):
        cluster.supervisor.close(grace=0)


def local_cluster(config: ParallelConfig, options: Mapping[str, Any]) -> LocalCluster:
    """Start the cluster of `env: local`, or of `local_gpu`, with the options of its block completed."""
    merged: dict[str, Any] = {
        "threads_per_worker": 1,
        # LocalCluster's own is :8787 on every interface, and a warning where that is taken
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": find_spec("bokeh") is not None},
        "silence_logs": logging.ERROR,
        **options,
    }
    if merged["threads_per_worker"] is None:
        merged["threads_per_worker"] = max(1, processors() // config.n_workers)
    if merged["dashboard_address"] is None:  # for Dask that is :8787 of every interface
        merged["dashboard_address"] = "127.0.0.1:0"
        merged["scheduler_kwargs"] = {**merged["scheduler_kwargs"], "dashboard": False}
    defaults: dict[str, Any] = {}
    dask.config.refresh(defaults, paths=[], env={})  # which has nothing of the user's then
    get = dask.config.get
    quiet = {key: value for key, value in QUIET.items() if get(key, None) == get(key, None, config=defaults)}
    with _ONE_BY_ONE, dask.config.set(quiet):
        processes = merged.pop("processes", True) is not False
        if not processes:
            # the HTTP server of a worker that is a thread would listen on every interface
            merged = {"worker_dashboard_address": "127.0.0.1:0", **merged}
        if BACKENDS[config.env].kind is Kind.GPU:
            merged["gpus"] = chosen_gpus(config.options, config.n_workers)
        return ForkedCluster(config, n_workers=config.n_workers, processes=processes, **merged)

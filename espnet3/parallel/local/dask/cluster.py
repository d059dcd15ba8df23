"""`env: local`: a real `LocalCluster` whose workers are forked by our own server.

Two things differ from Dask's default, a nanny that spawns: a worker starts in milliseconds without
importing the caller's main module, and one that dies is replaced at once under its old name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import LocalCluster, Worker
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from espnet3.parallel.backends.machine import gpu_env, processors
from espnet3.parallel.dask_compat import default_config, interrupted_before_start
from espnet3.parallel.dask_compat.clusters import ClosesMore, LostWorkersStay, give_up_cluster, guarded
from espnet3.parallel.local.fork_server import ForkServer, boot_of
from espnet3.parallel.local.memory_limit import MemoryWatch, limit_in_bytes
from espnet3.parallel.local.pages import PrivatePages, new_secret
from espnet3.parallel.local.supervisor import GRACE, Supervised, SupervisedCluster, Supervisor

logger = logging.getLogger(__name__)

# each imports its dashboard: a second thread could go on with a module whose import is unfinished, or has failed
_ONE_BY_ONE = threading.Lock()
_STOPPING = 2.0  # seconds that a loop has to end all its tasks

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

# Dask reports a worker that was killed on purpose as an error; a user's own levels stay
for _name in ("distributed.batched", "distributed.comm", "distributed.core", "distributed.scheduler"):
    if not logging.getLogger(_name).level:
        logging.getLogger(_name).setLevel(logging.ERROR)


def _is_an_error(record: logging.LogRecord) -> bool:
    _, error, _ = record.exc_info or (None, None, None)
    return not interrupted_before_start(error) and not isinstance(error, asyncio.CancelledError)


for _name in (
    *(f"distributed.{part}" for part in ("client", "core", "scheduler", "worker")),
    "tornado.application",
):
    logging.getLogger(_name).addFilter(_is_an_error)


def _forked() -> None:
    global _ONE_BY_ONE  # noqa: PLW0603  a lock that is held cannot be mended
    _ONE_BY_ONE = threading.Lock()  # the parent's may be held


os.register_at_fork(after_in_child=_forked)


def quiet_config() -> dict[str, Any]:
    """Return the entries of `QUIET` that the user has not set."""
    defaults = default_config()
    return {
        key: value
        for key, value in QUIET.items()
        if dask.config.get(key, None) == dask.config.get(key, None, config=defaults)
    }


class ThreadCluster(LocalCluster, PrivatePages):
    """A `LocalCluster` whose workers are threads of this process."""

    def __init__(self, *, pages: str | None, dashboard_here: bool, **options: Any) -> None:
        self.pages = pages
        self._dashboard_here = dashboard_here
        if pages is not None:
            options.setdefault("worker_class", guarded(Worker, self.guard_pages))
        super().__init__(processes=False, **options)

    @property
    def dashboard_link(self) -> str:
        """The base's link, on loopback where we chose the address: Dask names this host for an `inproc` scheduler."""
        link: str = super().dashboard_link
        host = urlsplit(self.scheduler_address).hostname
        return link.replace(f"//{host}:", "//127.0.0.1:", 1) if self._dashboard_here else link


class ForkedWorker(ProcessInterface):
    """One local worker process, replaced when it dies; a `SpecCluster` worker, and the owner of what is supervised."""

    def __init__(
        self,
        scheduler: str,
        *,
        name: Any,
        supervisor: Supervisor,
        lost: Callable[[str], Awaitable[None]],  # has the scheduler forget a worker, given its address
        pages: str | None = None,  # the secret that its HTTP pages ask for; None leaves them open
        gpus: Sequence[str] = (),  # the workers share them out: this one's is that of its number
        memory_limit: Any = "auto",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.name = name
        self.scheduler = scheduler
        self._supervisor = supervisor
        self._lost = lost
        self._pages = pages
        self._env = {str(k): str(v) for k, v in (env or {}).items()}
        if gpus:  # else a name need not be a number
            self._env |= gpu_env(gpus, int(name))
        self._nthreads = options.get("nthreads") or 1
        self._limit = limit_in_bytes(memory_limit, self._nthreads)
        if options.get("dashboard_address") is None:  # older versions then listen on every interface
            options.update(dashboard_address="127.0.0.1:0", dashboard=False)
        self._options = {**options, "name": name, "memory_limit": self._limit}
        self.supervised: Supervised | None = None
        self._stopped = asyncio.Event()
        self._replacing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Have a process started, and wait until its worker is registered with the scheduler.

        A process that ends while it starts, without an error of its own, was killed: another is started.
        """
        self._loop = asyncio.get_running_loop()
        self._starting: asyncio.Future[None] = self._loop.create_future()
        boot = boot_of(
            self._env,
            scheduler=self.scheduler,
            options=self._options,
            pages=self._pages,
            config=dask.config.config,
        )
        memory = MemoryWatch(self._limit, self._nthreads)
        self.supervised = self._supervisor.add(str(self.name), boot, memory, self)
        await self._starting
        await super().start()

    # --- called by the supervisor, in its thread ---

    def started(self, answer: Mapping[str, Any]) -> None:
        """Take note that its process is up: a worker of the scheduler's."""
        self._in_loop(self._has_started, answer["address"])

    def ended(self, was_up: bool, refused: bool, failure: str) -> None:
        """Take note that its process has ended, or is stopped."""
        self._in_loop(self._has_ended, was_up, refused, failure)

    def _in_loop(self, what: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *args)

    # --- the same in the cluster's loop ---

    def _has_started(self, address: str) -> None:
        self.address = address
        if self.supervised is not None and not self.supervised.ended:
            # the worker joined the scheduler: a later death is no failure of its start
            self.supervised.early = 0
        if not self._starting.done():
            self._starting.set_result(None)

    def _has_ended(self, was_up: bool, refused: bool, failure: str) -> None:
        supervised = self.supervised
        assert supervised is not None
        if supervised.stopped:
            self._stopped.set()
        over = supervised.stopped or supervised.given_up
        # a start that failed by an error of its own would fail again; a later end may be chance
        if not self._starting.done() and (over or refused):
            self._starting.set_exception(RuntimeError(failure or f"worker {self.name} was stopped"))
        if was_up and not over:
            self._replacing = self._loop.create_task(self._replace(supervised))

    async def _replace(self, supervised: Supervised) -> None:
        if self.address is not None:
            # a process that an item started may hold the dead worker's connections open: the scheduler
            # then takes it for alive, and its name for taken
            try:
                await self._lost(self.address)
            except Exception:  # of any kind: the next one must come, and the scheduler may find out by itself
                logger.warning("the scheduler does not forget worker %s", self.name, exc_info=True)
        self._supervisor.start_again(supervised)

    # --- called by its cluster ---

    async def close(self) -> None:
        """Ask the worker to stop; after two seconds, and for all that it started, SIGKILL."""
        if self.status != Status.closed:
            self.status = Status.closing
            if self._replacing is not None:
                self._replacing.cancel()
            if self.supervised is not None:
                self._supervisor.stop(self.supervised)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), 2 * GRACE)
        await super().close()

    def kill(self) -> None:
        """SIGKILL the process without replacing it; callable from any thread."""
        self.status = Status.closing
        if self.supervised is not None:
            self._supervisor.stop(self.supervised, grace=0)


class ForkedCluster(ClosesMore, LostWorkersStay, LocalCluster, PrivatePages, SupervisedCluster):
    """A `LocalCluster` of `ForkedWorker`s; ends their supervisor, and its fork server, when it closes."""

    def __init__(self, *, forkserver: ForkServer, pages: str | None, **options: Any) -> None:
        self.supervisor = Supervisor(forkserver)
        self.pages = pages
        try:
            self.supervisor.start()
            super().__init__(
                processes=True,
                worker_class=ForkedWorker,
                supervisor=self.supervisor,
                lost=self._forget,
                pages=pages,
                **options,
            )
        except BaseException:  # Ctrl-C too: a half-started cluster cannot be closed, only dropped
            drop(self)
            raise

    async def _forget(self, address: str) -> None:
        scheduler: Any = self.scheduler
        for _ in range(20):
            if address not in scheduler.workers:
                return
            await asyncio.sleep(0.005)
        await scheduler.remove_worker(address, stimulus_id="worker-process-ended", close=False)

    def kill_workers(self) -> None:
        """SIGKILL every worker: an aborted run does not wait for items in progress."""
        for worker in list(self.workers.values()):
            worker.kill()

    async def before_closing(self) -> None:
        """End the workers first: Dask would retire them, and they would then log that their scheduler is lost."""
        await asyncio.gather(*(worker.close() for worker in list(self.workers.values())))

    async def after_closing(self) -> None:
        """End the supervisor, which ends the fork server."""
        await asyncio.get_running_loop().run_in_executor(None, self.supervisor.close)


def drop(cluster: LocalCluster) -> None:
    """Give up a cluster that is half started or half closed, so that Dask does not wait for it at exit."""
    give_up_cluster(cluster, _STOPPING)
    if isinstance(cluster, ForkedCluster):
        cluster.supervisor.close(grace=0)


def local_cluster(
    n_workers: int,
    options: Mapping[str, Any],
    start: Callable[[], ForkServer],
    *,
    private: bool = True,
    gpus: Sequence[str] = (),
) -> LocalCluster:
    """Start the cluster of `env: local`, or of `local_gpu`."""
    merged: dict[str, Any] = {
        "threads_per_worker": 1,
        # LocalCluster's own is :8787 on every interface, and a warning where that is taken
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": find_spec("bokeh") is not None},
        "silence_logs": logging.ERROR,
        **options,
    }
    if merged["threads_per_worker"] is None:
        merged["threads_per_worker"] = max(1, processors() // n_workers)
    if merged["dashboard_address"] is None:  # for Dask that is :8787 of every interface
        merged["dashboard_address"] = "127.0.0.1:0"
        merged["scheduler_kwargs"] = {**merged["scheduler_kwargs"], "dashboard": False}
    pages = new_secret() if private else None
    with _ONE_BY_ONE, dask.config.set(quiet_config()):
        if merged.pop("processes", True) is False:
            # the HTTP server of a worker that is a thread would listen on every interface
            merged = {"worker_dashboard_address": "127.0.0.1:0", **merged}
            here = "dashboard_address" not in options
            return ThreadCluster(n_workers=n_workers, pages=pages, dashboard_here=here, **merged)
        if gpus:
            merged["gpus"] = gpus
        return ForkedCluster(n_workers=n_workers, forkserver=start(), pages=pages, **merged)

"""A local worker of Dask's as its cluster sees it: a process under the supervisor, replaced when it dies."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dask
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from espnet3.parallel.backends.gpus import gpu_env
from espnet3.parallel.local.fork_server import boot_of
from espnet3.parallel.local.memory_limit import MemoryWatch, limit_in_bytes
from espnet3.parallel.local.supervisor import GRACE, Supervised, Supervisor

logger = logging.getLogger(__name__)


class ForkedWorker(ProcessInterface):
    """One local worker process, replaced when it dies; a `SpecCluster` worker, and the owner of what is supervised.

    Args:
        lost: Makes the scheduler forget a worker, given its address.
        pages: The secret that its HTTP pages ask for; None leaves them open.
        gpus: The GPUs that the workers share out; this one's own is the one of its number.
        options: What is not named here goes to `distributed.Worker`.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        name: Any,
        supervisor: Supervisor,
        lost: Callable[[str], Awaitable[None]],
        pages: str | None = None,
        gpus: Sequence[str] = (),
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
        self._directory: str | None = None
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

    # --- what the supervisor says, in its thread ---

    def started(self, answer: Mapping[str, Any]) -> None:
        """Its process is up: a worker of the scheduler's."""
        self._directory = answer["directory"]
        self._in_loop(self._has_started, answer["address"])

    def ended(self, was_up: bool, refused: bool, failure: str) -> None:
        """Its process has ended, or it is stopped."""
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
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
        # what has an error of its own would have it again; later the fault may be one of the moment
        if not self._starting.done() and (over or refused):
            self._starting.set_exception(RuntimeError(failure or f"worker {self.name} was stopped"))
        if was_up and not over:
            self._replacing = self._loop.create_task(self._replace(supervised))

    async def _replace(self, supervised: Supervised) -> None:
        """Have another process started in place of one that had been up."""
        if self.address is not None:
            # a process that an item started may hold the dead worker's connections open: the scheduler
            # then takes it for alive, and its name for taken
            try:
                await self._lost(self.address)
            except Exception:  # of any kind: the next one must come, and the scheduler may find out by itself
                logger.warning("the scheduler does not forget worker %s", self.name, exc_info=True)
        self._supervisor.start_again(supervised)

    # --- what its cluster asks ---

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
            self._supervisor.stop(self.supervised, kill=True)

"""A local worker process as a cluster sees it: forked by our own server, watched, replaced when it dies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dask
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from espnet3.parallel.backends.backend import GPU_VARIABLE
from espnet3.parallel.backends.gpus import pinned
from espnet3.parallel.checks import search_path, working_folder
from espnet3.parallel.dask_compat import memory_limit_in_bytes
from espnet3.parallel.local.fork_server import ForkServer, send_boot
from espnet3.parallel.local.forking import kill_group
from espnet3.parallel.local.memory_limit import EVERY, MemoryWatch
from espnet3.parallel.local.supervisor import EARLY, GRACE, NO_SERVER, PAUSE, STARTS
from espnet3.parallel.records import ProcessEnd

logger = logging.getLogger(__name__)


class _EndedEarlyError(RuntimeError):
    """A worker started, and had ended before that was noted."""


class _KilledAtStartError(RuntimeError):
    """A worker's process ended while it was starting, without an error of its own."""


class ForkedWorker(ProcessInterface):
    """One local worker process, replaced when it dies; a `SpecCluster` worker.

    Args:
        scheduler: The scheduler's address.
        name: The worker's name; a replacement takes it over.
        forkserver: Where processes come from.
        lost: Makes the scheduler forget a worker, given its address.
        pages: The secret that its HTTP pages ask for; None leaves them open.
        gpus: The GPUs that the workers share out; this one's own is the one of its number.
        memory_limit: As for `LocalCluster`; a worker above 95 % of it is killed.
        options: Everything else goes to `distributed.Worker`.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        name: Any,
        forkserver: ForkServer,
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
        self.server = forkserver
        self._lost = lost
        self._pages = pages
        self.env = {str(k): str(v) for k, v in (env or {}).items()}
        if gpus:
            self.env[GPU_VARIABLE] = pinned(gpus, int(name))
        nthreads = options.get("nthreads") or 1
        self.memory_limit = memory_limit_in_bytes(memory_limit, nthreads, logger)
        if options.get("dashboard_address") is None:  # older versions then listen on every interface
            options.update(dashboard_address="127.0.0.1:0", dashboard=False)
        self.options = {**options, "name": name, "memory_limit": self.memory_limit}
        self.pid: int | None = None
        self.directory: str | None = None
        self.exits: dict[int, ProcessEnd] = {}
        self.failure: str | None = None
        self._gone = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._watch: asyncio.Task[None] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._up = False
        self._memory = MemoryWatch(self.memory_limit, nthreads)

    async def start(self) -> None:
        """Fork the process and wait until its worker is registered with the scheduler.

        A process that ends while it starts, without an error of its own, was killed: another is started.

        Raises:
            RuntimeError: It does not start, with its traceback; or several in a row were killed.
        """
        for failed in range(1, STARTS + 1):
            try:
                await self._spawn()
            except (_EndedEarlyError, _KilledAtStartError):
                if failed == STARTS or self.status != Status.created:  # closed meanwhile
                    raise
                await asyncio.sleep(PAUSE * failed)
            else:
                break
        await super().start()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._gone.clear()
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self.server.sock, self._read_server)
            pid: asyncio.Future[int] = loop.create_future()

            def on_pid(number: int) -> None:
                self.pid = number or None
                if not number:
                    pid.set_exception(RuntimeError(NO_SERVER))
                elif not pid.cancelled():  # else: closed while it was starting; its socket lets it know
                    pid.set_result(number)

            self.server.fork(theirs.fileno(), on_pid, self._on_exit)
        except OSError as error:
            ours.close()
            raise RuntimeError(NO_SERVER) from error
        finally:
            theirs.close()
        boot = {
            "scheduler": self.scheduler,
            "options": self.options,
            "pages": self._pages,
            "env": {**os.environ, **self.env},
            "cwd": working_folder(),
            "path": search_path(),
            "config": dask.config.config,
        }
        await loop.run_in_executor(None, send_boot, ours, boot)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        started = await pid
        try:
            answer = json.loads(await reader.readline())
        except ValueError:  # nothing, or half a line
            raise _KilledAtStartError(
                f"worker {self.name} did not start: {await self._end_of_start(started)}"
            ) from None
        if "error" in answer:
            kill_group(started)  # what is left of it would be in the way of the next one
            raise RuntimeError(f"worker {self.name} did not start:\n{answer['error']}")
        self.address = answer["address"]
        self.directory = answer["directory"]
        if self._gone.is_set():  # `_on_exit` replaces only a worker that was up
            raise _EndedEarlyError(f"worker {self.name} ended as soon as it had started")
        self._up = True
        self._end = loop.create_task(self._watch_end(reader, started))
        if self.memory_limit:
            self._watch = loop.create_task(self._watch_memory(started))

    async def _end_of_start(self, pid: int) -> str:
        """Say how a process ended that had not started yet; nothing is left of it."""
        kill_group(pid)  # what is left of it would be in the way of the next one
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gone.wait(), GRACE)
        return f"its process {self.exits.get(pid) or ProcessEnd()} while it was starting"

    def _read_server(self) -> None:
        if not self.server.read_events():
            asyncio.get_running_loop().remove_reader(self.server.sock)

    async def _watch_end(self, reader: asyncio.StreamReader, pid: int) -> None:
        """Notice the end of a worker's process from its socket, in case the server is gone."""
        with suppress(ConnectionError):  # it ended before it read what we sent, or before we sent it
            await reader.read()
        try:
            await asyncio.wait_for(self._gone.wait(), GRACE)
        except asyncio.TimeoutError:
            if pid not in self.exits:
                self._on_exit(pid, None)

    def _on_exit(self, pid: int, status: int | None) -> None:
        if status is None:
            self.exits[pid] = ProcessEnd()
        else:
            self.exits[pid] = self._memory.end_of(pid, status)
        if pid != self.pid:  # reported late: another has taken its place
            return
        if self._watch is not None:
            self._watch.cancel()
        if self._writer is not None:
            self._writer.close()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._gone.set()
        if self._up and self.status == Status.running:  # else the start fails, and raises
            logger.info("worker %s (pid %s) has ended; starting another", self.name, self.pid)
            self._up = False
            self._restart = asyncio.get_running_loop().create_task(self._respawn())

    async def _respawn(self) -> None:
        failed = early = 0
        while failed < STARTS and early < EARLY:
            try:
                if self.address is not None:
                    # a process that an item started may hold the dead worker's connections open: the scheduler
                    # then takes it for alive, and its name for taken
                    await self._lost(self.address)
                await self._spawn()
            except _EndedEarlyError as error:
                self.failure = str(error)
                early += 1
            except (
                Exception
            ) as error:  # of any kind: it is logged below, or raised to whoever waits for a worker
                self.failure = str(error)
                failed += 1
                await asyncio.sleep(PAUSE * failed)
            else:
                self.failure = None
                return
        logger.error(
            "worker %s is given up after %d failed starts: %s", self.name, failed + early, self.failure
        )

    async def _watch_memory(self, pid: int) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self._memory.look({self.name: pid})

    async def close(self) -> None:
        """Ask the worker to stop; after two seconds, and for all that it started, SIGKILL."""
        if self.status != Status.closed:
            self.status = Status.closing
            if self._restart is not None:
                self._restart.cancel()
            if self.pid is not None:
                if not self._gone.is_set():
                    await self._stop()
                kill_group(self.pid)
        await super().close()

    async def _stop(self) -> None:
        assert self._writer is not None and self.pid is not None
        try:
            self._writer.write(b"stop\n")
            await asyncio.wait_for(self._gone.wait(), GRACE)
        except (asyncio.TimeoutError, OSError):
            kill_group(self.pid)
            await asyncio.wait({asyncio.ensure_future(self._gone.wait())}, timeout=GRACE)

    def kill(self) -> None:
        """SIGKILL the process without replacing it; callable from any thread."""
        self.status = Status.closing
        if self.pid is not None and not self._gone.is_set():
            kill_group(self.pid)

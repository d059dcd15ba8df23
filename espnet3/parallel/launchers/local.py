"""`env: local`: a real `LocalCluster` whose workers are forked by our own server.

Two things differ from Dask's default, a nanny that spawns: a worker starts in milliseconds and
never imports the caller's main module, and one that dies is replaced at once under its old name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import dask
import psutil
from distributed import LocalCluster
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.worker_memory import parse_memory_limit

from espnet3.parallel.launchers.forkserver import ForkServer, kill_group, search_path, send_boot

logger = logging.getLogger(__name__)

# Dask's periodic work costs 2 to 4 points of efficiency on two cores; none of it serves a pilot.
# A value the user set (file, environment, dask.config.set) stays.
QUIET: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "2s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
}

# what Dask logs about a worker that was killed on purpose; a user's own logging settings stay
for _name in ("distributed.batched", "distributed.comm", "distributed.core", "distributed.scheduler"):
    if not logging.getLogger(_name).level:
        logging.getLogger(_name).setLevel(logging.ERROR)


def _is_an_error(record: logging.LogRecord) -> bool:
    """Whether a record tells of more than what is cancelled, as all tasks are when a cluster closes."""
    kind, error, _ = record.exc_info or (None, None, None)
    if isinstance(error, NameError):  # Ctrl-C before what `distributed.utils.sync` is to cancel has begun
        return error.name != "future"
    return kind is None or not issubclass(kind, asyncio.CancelledError)


for _name in (
    *(f"distributed.{part}" for part in ("client", "core", "scheduler", "worker")),
    "tornado.application",
):
    logging.getLogger(_name).addFilter(_is_an_error)

_NO_SERVER = "the server that forks local workers is gone"
_STARTS = 3  # starts in a row that may fail before a worker is given up
_PAUSE = 0.2  # seconds before the second of them; more before each further one
_EARLY = 20  # workers in a row that may end at once: on a busy machine a deadly item is faster than the start's answer
_GRACE = 2.0  # seconds a worker has to close by itself
_MEMORY_SHARE = 0.95  # of memory_limit, as Dask's nanny has it
_MEMORY_EVERY = 0.5  # seconds between looks at a worker's memory


def quiet_config() -> dict[str, Any]:
    """Return the entries of `QUIET` that the user has not set."""
    defaults = dask.config.merge(*reversed(dask.config.defaults))
    return {
        key: value
        for key, value in QUIET.items()
        if dask.config.get(key, None) == dask.config.get(key, None, config=defaults)
    }


def describe_exit(status: int) -> str:
    """Turn a wait status into words: "killed by SIGSEGV", "exited with code 3"."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with code {os.WEXITSTATUS(status)}"


class _EndedEarlyError(RuntimeError):
    """A worker did start, and was gone before it was taken note of."""


class ForkedWorker(ProcessInterface):
    """One local worker process, replaced when it dies, as `SpecCluster` wants it.

    Args:
        scheduler: The scheduler's address.
        name: The worker's name; a replacement takes it over.
        forkserver: Where processes come from.
        lost: Makes the scheduler forget a worker, given its address.
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
        memory_limit: Any = "auto",
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self.name = name
        self.scheduler = scheduler
        self.server = forkserver
        self._lost = lost
        self.env = {str(k): str(v) for k, v in (env or {}).items()}
        nthreads = options.get("nthreads") or 1
        self.memory_limit = parse_memory_limit(memory_limit, nthreads, logger=logger)
        if options.get("dashboard_address") is None:  # older versions then listen on every interface
            options.update(dashboard_address="127.0.0.1:0", dashboard=False)
        self.options = {**options, "name": name, "memory_limit": self.memory_limit}
        self.pid: int | None = None
        self.directory: str | None = None
        self.exits: dict[int, str] = {}
        self.failure: str | None = None
        self._gone = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._watch: asyncio.Task[None] | None = None
        self._restart: asyncio.Task[None] | None = None
        self._up = False

    async def start(self) -> None:
        """Fork the process and wait until its worker is registered with the scheduler."""
        await self._spawn()
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
                    pid.set_exception(RuntimeError(_NO_SERVER))
                elif not pid.cancelled():  # else: closed while it was starting; its socket tells it
                    pid.set_result(number)

            self.server.fork(theirs.fileno(), on_pid, self._on_exit)
        except OSError as error:
            ours.close()
            raise RuntimeError(_NO_SERVER) from error
        finally:
            theirs.close()
        boot = {
            "scheduler": self.scheduler,
            "options": self.options,
            "env": {**os.environ, **self.env},
            "cwd": os.getcwd(),
            "path": search_path(),
            "config": dask.config.config,
        }
        await loop.run_in_executor(None, send_boot, ours, boot)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        started = await pid
        try:
            answer = json.loads(await reader.readline())
        except ValueError:  # nothing, or half a line
            answer = {"error": "it ended while it was starting"}
        if "error" in answer:
            kill_group(started)  # what is left of it would stand in the way of the next
            raise RuntimeError(f"worker {self.name} did not start:\n{answer['error']}")
        self.address = answer["address"]
        self.directory = answer["directory"]
        if self._gone.is_set():  # of which nobody was told, as it was not up
            raise _EndedEarlyError(f"worker {self.name} ended as soon as it had started")
        self._up = True
        self._end = loop.create_task(self._watch_end(reader, started))
        if self.memory_limit:
            self._watch = loop.create_task(self._watch_memory(started))

    def _read_server(self) -> None:
        if not self.server.read_events():
            asyncio.get_running_loop().remove_reader(self.server.sock)

    async def _watch_end(self, reader: asyncio.StreamReader, pid: int) -> None:
        """Notice the end of a worker's process by its socket, should the server be gone."""
        with suppress(ConnectionError):  # it ended with something of ours unread, or before we wrote
            await reader.read()
        try:
            await asyncio.wait_for(self._gone.wait(), _GRACE)
        except asyncio.TimeoutError:
            if pid not in self.exits:
                self._on_exit(pid, None)

    def _on_exit(self, pid: int, status: int | None) -> None:
        self.exits[pid] = describe_exit(status) if status is not None else "ended"
        if pid != self.pid:  # said late: another has taken its place
            return
        if self._watch is not None:
            self._watch.cancel()
        if self._writer is not None:
            self._writer.close()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._gone.set()
        if self._up and self.status == Status.running:  # else the start that failed says so itself
            logger.info("worker %s (pid %s) has ended; starting another", self.name, self.pid)
            self._up = False
            self._restart = asyncio.get_running_loop().create_task(self._respawn())

    async def _respawn(self) -> None:
        failed = early = 0
        while failed < _STARTS and early < _EARLY:
            try:
                if self.address is not None:
                    # what an item had started may hold the dead worker's connections open: to the scheduler
                    # it lives on then, and its name is taken
                    await self._lost(self.address)
                await self._spawn()
            except _EndedEarlyError as error:
                self.failure = str(error)
                early += 1
            except Exception as error:  # whatever it is, it is said below, or by who waits for a worker
                self.failure = str(error)
                failed += 1
                await asyncio.sleep(_PAUSE * failed)
            else:
                self.failure = None
                return
        logger.error(
            "worker %s is given up after %d failed starts: %s", self.name, failed + early, self.failure
        )

    async def _watch_memory(self, pid: int) -> None:
        process, limit = psutil.Process(pid), self.memory_limit
        while True:
            await asyncio.sleep(_MEMORY_EVERY)
            try:
                used = process.memory_info().rss
            except psutil.NoSuchProcess:
                return
            if limit is not None and used > _MEMORY_SHARE * limit:
                logger.warning(
                    "worker %s uses %.1f GiB of its memory_limit of %.1f GiB: killed",
                    self.name,
                    used / 2**30,
                    limit / 2**30,
                )
                kill_group(pid)
                return

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
            await asyncio.wait_for(self._gone.wait(), _GRACE)
        except (asyncio.TimeoutError, OSError):
            kill_group(self.pid)
            await asyncio.wait({asyncio.ensure_future(self._gone.wait())}, timeout=_GRACE)

    def kill(self) -> None:
        """SIGKILL the process without replacing it; callable from any thread."""
        self.status = Status.closing
        if self.pid is not None and not self._gone.is_set():
            kill_group(self.pid)


class ForkedCluster(LocalCluster):
    """A `LocalCluster` of `ForkedWorker`s; ends its fork server when it closes."""

    def __init__(self, *, forkserver: ForkServer, **options: Any) -> None:
        self.forkserver = forkserver
        try:
            super().__init__(
                processes=True, worker_class=ForkedWorker, forkserver=forkserver, lost=self._forget, **options
            )
        except BaseException:  # Ctrl-C too: a half-started cluster cannot be closed, only dropped
            drop(self)
            raise

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Take note of workers that come and go.

        Dask's own drops a worker for good that is not there 15 s after one of its deaths; ours are
        replaced, and may just have died again.
        """
        super(SpecCluster, self)._update_worker_status(op, msg)

    async def _forget(self, address: str) -> None:
        """Have the scheduler forget a worker, if it does not find out by itself that it has ended."""
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

    def kill_worker(self, pid: int) -> None:
        """SIGKILL one worker process and what it started; another takes its place."""
        if any(worker.pid == pid for worker in list(self.workers.values())):  # no pid of long ago
            kill_group(pid)

    def exit_of(self, pid: int) -> str | None:
        """Say how a worker process ended, where that is known yet."""
        workers = list(self.workers.values())
        if any(worker.pid == pid and not worker._gone.is_set() for worker in workers):
            return None  # the number is in use again
        for worker in workers:
            if pid in worker.exits:
                return str(worker.exits[pid])
        return None

    def failure(self) -> str | None:
        """Return why workers could not be replaced, once none is left to hope for."""
        workers = list(self.workers.values())
        reasons = [w.failure for w in workers if w.failure and w._restart is not None and w._restart.done()]
        return str(reasons[0]) if workers and len(reasons) == len(workers) else None

    async def _close(self) -> None:
        try:
            # workers first: Dask would retire them, and theirs would then complain of a lost scheduler
            await asyncio.gather(*(worker.close() for worker in list(self.workers.values())))
            await super()._close()
        finally:
            asyncio.get_running_loop().remove_reader(self.forkserver.sock)
            await asyncio.get_running_loop().run_in_executor(None, self.forkserver.close)


def drop(cluster: LocalCluster) -> None:
    """Give up a cluster that is half started or half closed, so that Dask does not wait for it at exit."""
    SpecCluster._instances.discard(cluster)
    runner = getattr(cluster, "_loop_runner", None)
    if runner is not None:
        # what was half done on the loop fails now, and nobody is left to be told
        loop: Any = cluster.loop
        loop.asyncio_loop.set_exception_handler(lambda *_: None)
        with suppress(TimeoutError):  # a task of Dask's did not take its end, and its thread is a daemon
            runner.stop(timeout=_GRACE)
    if isinstance(cluster, ForkedCluster):
        cluster.forkserver.close()


def local_cluster(
    n_workers: int, options: Mapping[str, Any], start: Callable[[], ForkServer]
) -> LocalCluster:
    """Start the cluster of `env: local`.

    Args:
        n_workers: Worker processes.
        options: Keywords of `LocalCluster`, as the user wrote them.
        start: Returns the fork server; not called where the user asked for threads.

    Raises:
        RuntimeError: If a worker does not start, with its traceback.
    """
    merged: dict[str, Any] = {
        "threads_per_worker": 1,
        # LocalCluster's own is :8787 on every interface, and a warning where that is taken
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": find_spec("bokeh") is not None},
        "silence_logs": logging.ERROR,
        **options,
    }
    if merged["dashboard_address"] is None:  # asks for none, and Dask listens on :8787 everywhere
        merged["dashboard_address"] = "127.0.0.1:0"
        merged["scheduler_kwargs"] = {**merged["scheduler_kwargs"], "dashboard": False}
    with dask.config.set(quiet_config()):
        if merged.pop("processes", True) is False:
            # the HTTP server of a worker that is a thread would listen on every interface
            merged = {"worker_dashboard_address": "127.0.0.1:0", **merged}
            return LocalCluster(n_workers=n_workers, processes=False, **merged)
        server = start()
        try:
            return ForkedCluster(n_workers=n_workers, forkserver=server, **merged)
        except BaseException:
            server.close()
            raise

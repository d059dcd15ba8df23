"""The plugin that has items run beside a worker of Dask's, and the pool in which a client's slots wait for runs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple
from typing import Any
from urllib.parse import urlsplit

import psutil
from distributed import WorkerPlugin
from distributed.core import Status

from espnet3.parallel.dask_compat import is_lost_connection, loop_runs_here
from espnet3.parallel.errors import ConfigError, NoWorkersError
from espnet3.parallel.ledger.files import write_plainly
from espnet3.parallel.local.fork_server import ForkServer, boot_of
from espnet3.parallel.local.supervisor import LEAVE, MemoryWatch, Supervised, Supervisor
from espnet3.parallel.pilots.losses import sign_of
from espnet3.parallel.pilots.pool import BACKLOG, Pool, RunSlots, private_listener
from espnet3.parallel.pilots.worker_cluster import cluster_of
from espnet3.parallel.records import ProcessEnd
from espnet3.parallel.surroundings import PORTABLE, surroundings

_OUTLIVED = 0.2  # seconds by which a node outlives a process that was not killed with the whole job
_ATTEMPTS, _PAUSE = 4, 0.5  # at giving the workers their plugin, and seconds between them
_UNREACHED = 5.0  # seconds after which workers that are there and do not connect are taken to be unable to
_POOLS: weakref.WeakKeyDictionary[Any, Pool] = weakref.WeakKeyDictionary()  # by their clients


class PilotHost(WorkerPlugin):
    """Has items of one driver run beside this worker: in a process of ours, with a slot for each of its threads.

    The process is watched and replaced as on the driver's own machine, and the driver is told how it ends: a crash of
    an item, and a lock that it holds, cost nothing of Dask's. Workers that join late get them too.
    """

    def __init__(self, address: Any, key: bytes, name: str) -> None:
        self.address = address
        self.key = key
        self.name = name
        self._surroundings = surroundings(PORTABLE)

    def setup(self, worker: Any) -> None:
        """Open one slot per worker thread."""
        threads = worker.state.nthreads
        self._worker = worker
        boot = boot_of(
            {},
            name=str(worker.name),
            id=worker.id,
            threads=threads,
            address=self.address,
            key=self.key,
            node=worker.address,
            tls=_tls_files(worker) if worker.address.startswith("tls") else None,
        )
        boot["surroundings"] |= self._surroundings
        self._supervisor = Supervisor(ForkServer(dask=False))
        # a job's memory is there for Dask's worker and its nanny, about as large, too
        limit, own = worker.memory_manager.memory_limit, 2 * psutil.Process().memory_info().rss
        memory = MemoryWatch(limit and max(limit // 2, limit - own), threads)
        self._process = self._supervisor.add(str(worker.name), boot, memory, self)
        worker.metrics[self.name] = self._sign

    async def _sign(self, worker: Any) -> str:
        return str(sign_of(self._process.pid))

    # --- called by the supervisor, in its thread ---

    def started(self, answer: Any) -> None:
        """Do nothing: the driver hears of the slots."""

    def ended(self, process: Supervised) -> None:
        """Tell the driver how the process has ended."""
        end = self._supervisor.exits.get(process.pid)
        if process.up and end is not None and not process.over:
            at_once = end.by_itself or bool(end.reason)
            self._tell(at_once, "ended", socket.gethostname(), process.pid, astuple(end))
        if process.given_up:
            self._tell(False, "refused", self._worker.address, process.failure)
        if process.over or process.given_up:  # the driver has gone, or cannot be reached
            threading.Thread(target=self._supervisor.close, daemon=True).start()

    def _tell(self, at_once: bool, *said: Any) -> None:
        async def tell() -> None:
            if not at_once:
                await asyncio.sleep(_OUTLIVED)  # the end of the whole job may have ended it
            if self._worker.status in (Status.running, Status.paused):
                self._worker.log_event(self.name, said)

        with suppress(RuntimeError):  # the worker has ended
            self._worker.loop.add_callback(tell)

    async def teardown(self, worker: Any) -> None:
        """Take no more chunks, and let those in hand be answered: a worker at the end of its lifetime loses nothing."""
        worker.metrics.pop(self.name, None)
        self._supervisor.stop(self._process, float("inf"), LEAVE)
        # they wait for a socket or run user code: there is no event of this loop
        while not self._process.ended:  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.02)
        self._supervisor.close()  # here: no thread can be had where the interpreter is ending


def _tls_files(worker: Any) -> dict[str, str | None]:
    # as `Security` has them: paths, or what the files would hold
    def on_disk(name: str, text: str | None) -> str | None:
        if text is None or "\n" not in text:
            return text
        path = os.path.join(worker.local_directory, f"espnet3-{name}.pem")
        write_plainly(path, text.encode())
        return path

    files = worker.security.get_tls_config_for_role("worker")
    return {name: on_disk(name, text) for name, text in files.items()}


def let_go(descriptors: Iterable[int]) -> None:
    """Put the null device in the place of descriptors, in this process alone: a forked child of the driver.

    A connection ends when the last process that holds it does: a child that outlives a killed driver would keep the
    workers waiting. They are not closed: their objects would close them again, when the numbers are other files'.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        with suppress(OSError):  # it was closed at this very moment
            os.dup2(null, each, inheritable=False)
    os.close(null)


def _forked() -> None:
    for pool in list(_POOLS.values()):
        let_go(pool.descriptors())


os.register_at_fork(after_in_child=_forked)


def check_client(client: Any) -> None:
    """Check that a client can be used, and used here."""
    if client.status in ("closing", "closed"):
        raise NoWorkersError(
            "the Dask client is closed, so nothing can run on its workers: call this inside the `with` block that "
            "opened it (read a parallel_for to its end in there), or open another one"
        )
    if not loop_runs_here(client):
        raise of_the_parent()
    if client.asynchronous:
        raise ConfigError(
            "the Dask client is asynchronous, and this call would stop its event loop: make it in a thread "
            "(`await asyncio.to_thread(...)`), or give it a synchronous client"
        )


def of_the_parent() -> NoWorkersError:
    """Return the error of a forked child that uses a client of its parent."""
    return NoWorkersError(
        "the Dask client was opened by the process that this one was forked from, and its connections are "
        "that process's own: open a client here (`with get_client(...)`), or do this before the fork"
    )


def pool_of(client: Any) -> Pool:
    """Return a client's pool, made on first use, closed with the client."""
    check_client(client)
    pool = _POOLS.get(client)
    if pool is None:
        fresh = _open_pool(client)
        pool = _POOLS.setdefault(client, fresh)  # another thread may have opened one meanwhile
        if pool is fresh:
            weakref.finalize(client, pool.close)
        else:
            fresh.close()
    return pool


def _open_pool(client: Any) -> Pool:
    own: Pool | None = cluster_of(client).open_pool()
    if own is not None:
        return own
    listener, folder = _listen(client)
    tls: Any = None
    if folder is None and client.scheduler.address.startswith("tls"):
        tls = client.security.get_listen_args("client")["ssl_context"]
        tls.num_tickets = 0  # they would make a channel without a message look readable
    pool = Pool(listener, folder, tls)

    def heard(event: tuple[float, Any]) -> None:
        what, *said = event[1]
        if what == "refused":
            pool.refusals[said[0]] = said[1]
        else:
            host, pid, end = said
            pool.exits[host, pid] = ProcessEnd(*end)

    try:
        client.subscribe_topic(pool.name, heard)
        register(client, PilotHost(pool.address, pool.key, pool.name), pool.name)
    except BaseException:  # Ctrl-C too: leave no door and no folder behind
        pool.close()
        raise
    return pool


def _listen(client: Any) -> tuple[socket.socket, str | None]:
    scheduler = client.scheduler.address
    host = urlsplit(scheduler).hostname or ""
    if scheduler.startswith("inproc") or host in ("127.0.0.1", "::1", "localhost"):
        return private_listener(cluster_of(client).remove_at_end)
    # the address this host has on the way to the scheduler, never every address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return socket.create_server((probe.getsockname()[0], 0), backlog=BACKLOG), None


def register(client: Any, plugin: Any, name: str) -> None:
    """Give a plugin to every worker, now and later; workers that end meanwhile are no error."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            client.register_plugin(plugin, name=name)
        except (OSError, ValueError) as error:  # a worker died just now; the others have the plugin
            if attempt == _ATTEMPTS or not is_lost_connection(error):
                raise
            time.sleep(_PAUSE)
        else:
            return


def has_work(client: Any) -> bool:
    """Return whether a run of ours uses a client's workers."""
    pool = _POOLS.get(client)
    return pool is not None and bool(pool.claims)


def close_pool(client: Any) -> None:
    """Close a client's pool, if it has one."""
    pool = _POOLS.pop(client, None)
    if pool is not None:
        pool.close()


class ClientSlots(RunSlots):
    """The slots of a client's workers, for one run: chunks become Dask tasks where pilots cannot connect."""

    # as its cluster answers
    waits = property(lambda self: self._cluster.waits)
    missing = property(lambda self: self._cluster.missing)
    kill_worker = property(lambda self: self._cluster.kill_worker)

    def __init__(self, client: Any) -> None:
        self._client = client
        self.pool = pool_of(client)
        self._cluster = cluster_of(client)
        self.starts_at_once = self._cluster.starts_at_once
        self._workers_since: float | None = None
        if self.pool.tasks is not None:
            self.pool.tasks.open()

    def check(self) -> None:
        """Check that the client can still be used; as `check_client`."""
        check_client(self._client)

    def last_heard(self, address: str) -> Any:
        """Return when the scheduler last heard from a worker; None where it does not know the worker (any more)."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except OSError:  # the scheduler does not answer, which says nothing about the worker
            return time.monotonic()
        worker = workers.get(address, {})
        return worker.get("metrics", {}).get(self.pool.name, worker.get("last_seen"))

    def end_of(self, host: str, pid: int) -> ProcessEnd | None:
        """Return how a process ended, once its node, or the server here that has forked it, has said so."""
        return self.pool.exits.get((host, pid)) or self._cluster.end_of(host, pid)

    def given_up(self) -> str | None:
        """Return why no worker will come any more, or why no node can have a process of ours."""
        refusals = self.pool.refusals if self.pool.tasks is None else {}
        workers = self._client.scheduler_info(n_workers=-1)["workers"] if refusals else {}
        if workers and refusals.keys() >= workers.keys():
            return "\n".join(f"{place}: {why}" for place, why in refusals.items())
        return self._cluster.given_up()

    def fall_back(self) -> None:
        """Have chunks travel as Dask tasks, if workers are there and none can connect."""
        if self.pool.connected or self.pool.tasks is not None:
            return
        if not self._client.scheduler_info()["workers"]:
            self._workers_since = None
            return
        self._workers_since = self._workers_since or time.monotonic()
        # one that has just come may be about to connect
        if time.monotonic() - self._workers_since < _UNREACHED:
            return
        from espnet3.parallel.pilots.dask.tasks import TaskSlots  # needed by few

        self.pool.tasks = TaskSlots(self._client, self.pool)
        self.pool.tasks.open()

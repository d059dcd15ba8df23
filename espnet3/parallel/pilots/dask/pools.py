"""The plugin that opens a worker's slots to one driver, and the pool in which a client's slots wait for runs."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from distributed import WorkerPlugin

from espnet3.parallel.dask_compat import is_lost_connection, loop_runs_here
from espnet3.parallel.env.store import forget_worker, name_worker
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.pilots.pool import BACKLOG, Pool, RunSlots, SlotClaim, private_listener
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker import Slots
from espnet3.parallel.pilots.worker_cluster import cluster_of
from espnet3.parallel.surroundings import give, portable

_ATTEMPTS, _PAUSE = 4, 0.5  # at giving the workers their plugin, and seconds between them
_UNREACHED = 5.0  # seconds after which workers that are there and do not connect are taken to be unable to

# --- on a worker ---


class PilotHost(WorkerPlugin):
    """Opens this worker's slots to one driver, as `Slots` are; workers that join late get one too."""

    def __init__(self, address: Any, key: bytes, name: str, replaced: bool = True) -> None:
        self.address = address
        self.key = key
        self.name = name
        self.driver = (socket.gethostname(), os.getpid())
        self._replaced = replaced
        self._surroundings = portable()

    def setup(self, worker: Any) -> None:
        """Open one slot per worker thread."""
        name_worker(worker.id)
        threads = worker.state.nthreads
        hello = Hello(str(worker.name), worker.address, os.getpid(), socket.gethostname(), threads)
        encrypted = worker.address.startswith("tls")
        tls = worker.security.get_connection_args("worker")["ssl_context"] if encrypted else None
        if hello.process != self.driver and (refusal := give(self._surroundings)):
            raise NoWorkersError(f"worker {worker.name} cannot be used: {refusal}")
        self._slots = Slots(self.address, self.key, self.driver, self._replaced, hello, tls)
        self._slots.open()

    async def teardown(self, worker: Any) -> None:
        """Take no more chunks, and let those in hand be answered: a worker at the end of its lifetime loses nothing."""
        forget_worker(worker.id)
        self._slots.leave()
        # the slots are threads that wait for a socket or run user code: there is no event of this loop
        while self._slots.is_needed():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.02)

    def drop_chunks(self) -> None:
        """Keep `teardown` from waiting: the chunks in hand are not wanted any more."""
        self._slots.drop_chunks()


# --- in the driver ---

_POOLS: weakref.WeakKeyDictionary[Any, Pool] = weakref.WeakKeyDictionary()
# `TaskSlots` of pools that have them
_TASKS: weakref.WeakKeyDictionary[Pool, Any] = weakref.WeakKeyDictionary()
# re-entrant: a garbage collection inside a locked region may close another client's pool
_POOLS_LOCK = threading.RLock()


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


def of_the_parent() -> NoWorkersError:
    """Return the error of a forked child that uses a client of its parent."""
    return NoWorkersError(
        "the Dask client was opened by the process that this one was forked from, and its connections are "
        "that process's own: open a client here (`with get_client(...)`), or do this before the fork"
    )


def pool_of(client: Any) -> Pool:
    """Return a client's pool, made on first use, closed with the client."""
    check_client(client)
    with _POOLS_LOCK:
        pool = _POOLS.get(client)
    if pool is None:
        fresh = _open_pool(client)  # talks to the scheduler: not under the lock
        with _POOLS_LOCK:
            pool = _POOLS.setdefault(client, fresh)
        if pool is fresh:
            weakref.finalize(client, pool.close)
        else:
            fresh.close()
    return pool


def _open_pool(client: Any) -> Pool:
    listener, folder = _listen(client)
    tls: ssl.SSLContext | None = None
    if folder is None and client.scheduler.address.startswith("tls"):
        tls = client.security.get_listen_args("client")["ssl_context"]
        assert tls is not None
        tls.num_tickets = 0  # they would make a channel without a message look readable
    pool = Pool(listener, folder, tls)
    try:
        register(client, PilotHost(pool.address, pool.key, pool.name, cluster_of(client).is_ours), pool.name)
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
        ours = probe.getsockname()[0]
    return socket.create_server((ours, 0), backlog=BACKLOG), None


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
    return pool is not None and pool.busy


def close_pool(client: Any) -> None:
    """Close a client's pool, if it has one."""
    with _POOLS_LOCK:
        pool = _POOLS.pop(client, None)
    if pool is not None:
        pool.close()


class ClientSlots(RunSlots):
    """The slots of a client's workers, for one run: chunks become Dask tasks where pilots cannot connect."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pool = pool_of(client)
        self._workers_since: float | None = None

    def claim(self) -> SlotClaim:
        """Open a claim to slots of the client's pool."""
        if (tasks := _TASKS.get(self._pool)) is not None:
            tasks.open()
        return self._pool.claim()

    def wake(self) -> None:
        """Have the run look for new work; from any thread."""
        self._pool.wake()

    def check(self) -> None:
        """Check that the client can still be used; as `check_client`."""
        check_client(self._client)

    def last_heard(self, address: str) -> Any:
        """Return when the scheduler last heard from a worker; None where it does not know the worker (any more)."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except OSError:  # the scheduler does not answer, which says nothing about the worker
            return time.monotonic()
        return workers.get(address, {}).get("last_seen")

    def fall_back(self) -> None:
        """Have chunks travel as Dask tasks, if workers are there and none can connect."""
        if self._pool.connected or self._pool in _TASKS:
            return
        if not self._client.scheduler_info()["workers"]:
            self._workers_since = None
            return
        now = time.monotonic()
        self._workers_since = self._workers_since or now
        if now - self._workers_since < _UNREACHED:  # one that has just come may be about to connect
            return
        from espnet3.parallel.pilots.dask.tasks import TaskSlots  # needed by few

        _TASKS[self._pool] = TaskSlots(self._client, self._pool)
        _TASKS[self._pool].open()

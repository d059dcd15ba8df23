"""The driver's side of the pilots: one listener per cluster, and the slots that connected to it.

    worker slot ──connect, prove the key, Hello──> Door ──admit──> Pool ──SlotClaim──> a run's loop
                                                    └── given up where a step of that takes longer than `LIMIT`

Only workers open connections, each of which is greeted in a thread of its own: one peer that says nothing, or something
unknown, keeps no other one waiting. A slot serves one run at a time; a second run at the same time (nested, or from
another thread) gets slots of its own.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.watch import Late
from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.pilots.channel import Channel, InFlight, Window, greet_worker
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker_cluster import WorkerCluster
from espnet3.parallel.records import ProcessEnd

if TYPE_CHECKING:
    from ssl import SSLContext

logger = logging.getLogger(__name__)

LIMIT = 5.0  # seconds for each step from a connection to its greeting
_PAUSE = 0.1  # seconds after a connection that this process has no descriptor, thread or memory for
BACKLOG = 1024  # connections that wait to be accepted
_LONGEST = 90  # bytes of a folder's path: the address of a unix socket has 108 at most, on macOS 104
_ENDS = 256  # lost slots that are remembered: more than any host loses at once


@dataclass(slots=True, eq=False)
class Slot:
    """One connected worker slot, as the driver sees it."""

    channel: Channel
    hello: Hello
    mark: Window | None = None  # None where the worker is on another host
    came: float = field(default_factory=time.monotonic)  # when it connected
    flying: deque[Chunk] = field(default_factory=deque)  # sent and not answered; the worker is at the first
    ready: bool = False  # has the current run's env
    seen: tuple[InFlight, float] | None = None  # its mark, and since when by the driver's clock
    late: Late | None = None  # the item for which it was killed, as that took too long
    end: ProcessEnd | None = None  # how it was lost, where this side knows that better than the cluster

    def fileno(self) -> int:
        """Return the channel's descriptor, for selectors."""
        return self.channel.fileno()

    @property
    def is_inside(self) -> bool:
        """Whether the slot is inside an item, as far as that is known, or was when its worker died."""
        return bool(self.mark.read().items if self.mark is not None else self.flying)


class SlotClaim:
    """One run's slots of a pool, until it is closed. `fileno()` becomes readable when new slots may be taken."""

    def __init__(self, pool: Pool) -> None:
        self.slots: set[Slot] = set()
        self._pool = pool
        self.is_first = not pool.served  # no slot has worked before
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_w.setblocking(False)
        self._wake_r.setblocking(False)
        with pool.lock:
            pool.claims.append(self)

    def fileno(self) -> int:
        """Return the descriptor that `wake` makes readable."""
        return self._wake_r.fileno()

    def wake(self) -> None:
        """Let the run's loop know that slots have arrived; from any thread."""
        with suppress(OSError):  # full (the loop will wake anyway) or closed (the run is over)
            self._wake_w.send(b"!")

    def collect(self, most: int | None = None) -> list[Slot]:
        """Take the slots that are free now, so many at most, and as many of a worker as it has threads.

        That a slot's worker has died shows when the slot is read.
        """
        with suppress(BlockingIOError):
            self._wake_r.recv(4096)
        fresh, pool = list[Slot](), self._pool
        with pool.lock:
            # by worker, not by process: that of a slot whose chunks are tasks is not known
            held = Counter(slot.hello.address for slot in self.slots)
            for slot in list(pool.idle):
                if slot.channel.at_end():  # its worker went while there was nothing to do
                    pool.idle.remove(slot)
                    slot.channel.close()
                elif held[slot.hello.address] < slot.hello.threads and (most is None or len(fresh) < most):
                    pool.idle.remove(slot)
                    held[slot.hello.address] += 1
                    fresh.append(slot)
        self.slots.update(fresh)
        return fresh

    def shared(self, process: tuple[str, int]) -> bool:
        """Return whether a process is inside an item of another run, or was when it died."""
        if not process[1]:  # of slots whose chunks are tasks: the worker is not known
            return False
        pool = self._pool
        with pool.lock:
            if any(process == ended and other is not self for other, ended in pool.ends):
                return True  # the other run noticed the death first
            others = [s for other in pool.claims if other is not self for s in list(other.slots)]
            others += pool.idle  # it may still be in an item of a run that was given up
        return any(s.hello.process == process and s.is_inside for s in others)

    def lost(self, slot: Slot) -> None:
        """Drop a slot whose worker is gone, and remember whether that was inside an item."""
        self.slots.discard(slot)
        with self._pool.lock:
            if slot.is_inside:
                self._pool.ends.append((self, slot.hello.process))
            free = bool(self._pool.idle)
        slot.channel.close()
        if free:  # perhaps of the same worker, which had as many slots in this run as it has threads
            self.wake()

    def close(self) -> None:
        """Return the slots: the next run takes them again, and one at the same time the others."""
        for slot in self.slots:
            slot.flying.clear()
            slot.ready, slot.late = False, None
        pool = self._pool
        with pool.lock:
            pool.served = True
            pool.claims.remove(self)
            if pool.closed:
                for slot in self.slots:
                    slot.channel.close()
            else:
                pool.idle[:0] = self.slots
        pool.wake()
        self.slots.clear()
        self._wake_r.close()
        self._wake_w.close()


class ChangedWorkersError(Exception):
    """Kept workers are not as new: a run that has handed out nothing yet wants others."""


class RunSlots(WorkerCluster):
    """The slots that one run may use, those of `pool`, and what their cluster knows of the workers."""

    pool: Pool

    def grow(self) -> None:
        """Start workers that the run may use and that are not there yet: one that stayed may be enough for it."""

    def check(self) -> None:
        """Check that the workers can still be used."""

    def last_heard(self, address: str) -> Any:
        """Return when a worker of another host was last heard from, in any unit; None where that is not known."""
        return None

    def fall_back(self) -> None:
        """Bring slots of another kind if workers are there and none can connect."""


@dataclass(eq=False)
class Door:
    """Accepts the connections of workers until it is closed, and closes the listener then.

    `admit` is called with each channel and its greeting, in the connection's own thread, also after it is closed.
    """

    listener: socket.socket
    key: bytes
    admit: Callable[[Channel, Hello], object]
    tls: SSLContext | None = None  # for connections from other hosts
    limit: float = LIMIT

    def __post_init__(self) -> None:
        self.address: object = self.listener.getsockname()  # a path, or a host and a port
        self._closed = False  # no event: Ctrl-C in the middle of one leaves its lock held
        self._held_up = False  # since the last connection was accepted
        self._wake_r, self._wake_w = socket.socketpair()
        self.listener.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="pilot-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept nothing more."""
        self._closed = True
        self._wake_w.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self.listener, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        try:
            while not self._closed:
                poller.poll()
                if not self._closed:
                    self._accept()
        finally:
            self.listener.close()
            self._wake_r.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it went again before it was accepted
            return
        except OSError as error:  # no descriptor is free; Linux reports errors of one connection here, too
            if not self._held_up:
                logger.warning("workers that want to connect have to wait: %s", error)
            self._held_up = True
            time.sleep(_PAUSE)
            return
        self._held_up = False
        try:
            sock.settimeout(self.limit)
            if self.tls is not None:  # its handshake is the first step of the connection's own thread
                sock = self.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=self._greet, args=(sock,), name="pilot-greeting", daemon=True).start()
        except (OSError, RuntimeError) as error:  # it has gone; or no thread can be started just now
            logger.warning("a worker's connection was dropped, and it will try again: %s", error)
            sock.close()
            time.sleep(_PAUSE)

    def _greet(self, sock: socket.socket) -> None:
        try:
            channel = greet_worker(sock, self.key)
            hello = channel.recv()
            if not isinstance(hello, Hello):
                raise TypeError(f"a greeting is a Hello, not {type(hello).__name__}")
            sock.settimeout(None)
        except ANYTHING as error:
            if isinstance(error, OSError):  # it went, took too long, or does not hold the key
                logger.debug("a connection to the pool ended in its handshake: %s", error)
            else:
                why = "a worker's greeting cannot be read (%s: %s): does it run another version of this package?"
                logger.warning(why, type(error).__name__, error)
            sock.close()
        else:
            self.admit(channel, hello)


class Pool:
    """All slots of one cluster's workers, which connect to `listener`; the pool closes it.

    `folder` is the private one that has its socket and the workers' marks, removed when the pool closes; None where the
    workers may be on other hosts.
    """

    def __init__(self, listener: socket.socket, folder: str | None, tls: SSLContext | None = None) -> None:
        self.key = os.urandom(32)  # workers prove to hold it
        self.lock = threading.Lock()
        self.idle: list[Slot] = []
        self.claims: list[SlotClaim] = []
        self.ends: deque[tuple[SlotClaim, tuple[str, int]]] = deque(maxlen=_ENDS)
        self.exits: dict[tuple[str, int], ProcessEnd] = {}  # how processes on nodes have ended
        self.refusals: dict[str, str] = {}  # why nodes can have no process, by their workers' addresses
        self._folder = folder
        self.name = f"espnet3-pilots-{uuid.uuid4().hex[:8]}"
        self.connected = self.closed = self.served = False
        self.tasks: Any = None  # `TaskSlots`, where workers cannot connect
        self._pid = os.getpid()
        self._door = Door(listener, self.key, self.admit, tls)
        self.address = self._door.address

    def admit(self, channel: Channel, hello: Hello) -> bool:
        """Take in a slot that has connected; False, and its channel is closed, where the pool is."""
        mark = None
        if hello.mark and self._folder is not None:
            with suppress(OSError):  # the folder is gone: the pool is being closed
                mark = Window(self._folder, hello.mark)
        with self.lock:
            if self.closed:
                channel.close()
                return False
            self.connected = True
            self.exits.pop(hello.process, None)  # the number is in use again
            self.idle.append(Slot(channel, hello, mark))
        self.wake()
        return True

    def wake(self) -> None:
        """Have every run look for slots and for new work now; from any thread."""
        for claim in list(self.claims):
            claim.wake()

    def descriptors(self) -> list[int]:
        """Return the descriptors of its listener and of all connections of workers; asked in a forked child."""
        slots = [*self.idle, *(slot for claim in self.claims for slot in claim.slots)]
        return [self._door.listener.fileno(), *(slot.fileno() for slot in slots if not slot.channel.at_end())]

    def close(self) -> None:
        """Close the door and every idle slot; pilots end when their channel does."""
        if os.getpid() != self._pid:  # at the end of a forked child: all of it is its parent's
            return
        held = self.lock.acquire(timeout=1.0)  # Ctrl-C in an earlier close may have left it held
        try:
            self.closed = True
            for slot in self.idle:
                slot.channel.close()
            self.idle.clear()
        finally:
            if held:
                self.lock.release()
        self.wake()  # a run that goes on notices at once
        self._door.close()
        if self._folder is not None:
            gone = f"{self._folder}-gone"
            # no shutil, which the interpreter's end does not import
            with suppress(OSError):  # it is gone already
                os.rename(self._folder, gone)  # nothing can be put into it any more
                for name in os.listdir(gone):
                    os.unlink(os.path.join(gone, name))
                os.rmdir(gone)


def private_listener(remove_at_end: Callable[[str], None]) -> tuple[socket.socket, str]:
    """Listen on a unix socket that only its owner can reach."""
    folder = _private_folder()
    remove_at_end(folder)
    remove_at_end(f"{folder}-gone")  # its name while it is being removed
    os.mkdir(folder, mode=0o700)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(os.path.join(folder, "pool"))
    os.chmod(os.path.join(folder, "pool"), 0o600)
    door.listen(BACKLOG)
    return door, folder


def _private_folder() -> str:
    # as `tempfile` has them; the last one is where every Unix has temporary files
    chosen = getattr(sys.modules.get("tempfile"), "tempdir", None)
    named = filter(None, (chosen, *map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))))
    for place in (places := [*map(os.path.abspath, (*named, os.path.join(os.sep, "tmp")))]):
        if len(os.fsencode(place)) <= _LONGEST - len("/espnet3-12345678") and os.access(place, os.W_OK):
            return os.path.join(place, f"espnet3-{uuid.uuid4().hex[:8]}")
    raise ConfigError(
        f"the folder for temporary files, {places[0]!r}, has too long a path for a socket in it, and the system's own "
        "one cannot be written to: set TMPDIR to a folder with a shorter path"
    )

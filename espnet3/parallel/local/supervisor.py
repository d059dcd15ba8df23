"""Watch forked worker processes from a thread: start them, notice how they end, replace them.

supervisor ──> fork server: starts a process, says how it ended
supervisor ──> each process: "stop"; its end of the socket says that it is gone

All workers of this machine are under it, those with slots and those of Dask; the latter have an owner, which is told
how they fare. On a node a worker of Dask's has one for the process that works beside it.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends.check import size_in_bytes
from espnet3.parallel.backends.machine import all_memory, processors
from espnet3.parallel.local.fork_server import ForkServer
from espnet3.parallel.local.forking import SIZE, kill_group
from espnet3.parallel.pilots.worker_cluster import WorkerCluster
from espnet3.parallel.records import MEMORY_LIMIT, ProcessEnd

logger = logging.getLogger(__name__)

GRACE = 2.0  # seconds that a worker has to end by itself
LEAVE = b"leave\n"  # told a process with slots in place of "stop": it ends once what is in hand is done
_NO_SERVER = "the server that forks local workers is gone"
_STARTS = 3  # failed starts in a row after which a worker is given up
_PAUSE = 0.2  # seconds after the first of them; more after each further one
_AGAIN = 0.05  # seconds from one kill to the next, until the process has ended
_SHARE = 0.95  # of memory_limit, as Dask's nanny has it
_EVERY = 0.5  # seconds between looks at a worker's memory


class MemoryWatch:
    """Kills a worker's process where it uses more than its limit; looks again at `next_look` (monotonic)."""

    def __init__(self, limit: Any, threads: int) -> None:
        self.limit = limit_in_bytes(limit, threads)
        self._over: dict[int, int] = {}  # bytes that processes used when they were killed for it
        self.next_look = float("inf") if self.limit is None else _next_look()

    def look(self, name: str, pid: int) -> None:
        """Look at the process of the worker of this name; it is time to."""
        assert self.limit is not None
        self.next_look, most = _next_look(), _SHARE * self.limit
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:  # psutil would be half a megabyte of each driver
                used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            if used > most:  # without what workers share, such as a table loaded before the fork
                with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                    used = 1024 * sum(int(line.split()[1]) for line in file if line.startswith(b"Private_"))
        except OSError as error:  # no descriptor is free, or it has just ended
            logger.debug("the memory of worker %s is not known just now: %s", name, error)
            return
        if used > most:
            sizes = used / 2**30, self.limit / 2**30
            logger.warning("worker %s uses %.1f GiB of its memory_limit of %.1f GiB: killed", name, *sizes)
            self._over[pid] = used
            kill_group(pid)

    def end_of(self, pid: int, status: int) -> ProcessEnd:
        """Return how a process ended, from its wait status."""
        used = self._over.pop(pid, 0)
        code, reason = os.waitstatus_to_exitcode(status), MEMORY_LIMIT if used else ""
        return ProcessEnd.from_returncode(code, reason, used, self.limit or 0)


def _next_look() -> float:
    return (time.monotonic() // _EVERY + 1) * _EVERY


def limit_in_bytes(value: Any, threads: int) -> int | None:
    """Return the limit of one worker."""
    if value is None or value in {0, "0"}:
        return None
    if value == "auto":
        return int(all_memory() * min(1.0, threads / processors()))
    if isinstance(value, float) and value <= 1.0:
        return int(value * all_memory())
    asked = size_in_bytes(value) if isinstance(value, str) else int(value)
    return min(asked, all_memory())


@dataclass(slots=True, eq=False)
class Supervised:
    """A worker, and the process that it is now."""

    name: str  # a replacement takes it over
    boot: Mapping[str, Any]
    memory: MemoryWatch
    # told in the supervisor's thread: `started(answer)`, and `ended(self)`, also where it is stopped
    owner: Any = None
    pid: int = 0  # until it is known
    up: bool = False
    ended: bool = False  # and no other process has been asked for yet
    refused: bool = False  # the worker reported why it cannot start
    failure: str = ""  # why the last process did not start
    given_up: bool = False
    stopped: bool = False  # its end was asked for
    over: bool = False  # its slots have no driver any more
    sock: socket.socket | None = None
    inbox: bytes = b""  # the beginning of a line that is not whole yet
    again: float | None = None  # when the next process is started, by `time.monotonic`
    kill: float | None = None  # when this one is killed, if it has not ended by then
    failed: int = 0  # starts, in a row

    def tell_owner(self) -> None:
        """Say that the process has ended."""
        if self.owner is not None:
            self.owner.ended(self)

    def send(self, line: bytes) -> bool:
        """Send a line to the process; False if it is not there."""
        if self.sock is None:
            return False
        try:
            self.sock.sendall(line)
        except OSError:
            return False
        return True


class Supervisor:
    """Keeps worker processes alive, which come from a server that it ends. Its methods are for any thread."""

    def __init__(self, server: ForkServer) -> None:
        self.workers: list[Supervised] = []
        self.exits: dict[int, ProcessEnd] = {}  # how processes ended, by their pids
        self.server = server
        self._pid = os.getpid()
        self._closing = self._without_server = False
        self._calls: deque[Callable[[], None]] = deque()
        self._asked: deque[Supervised] = deque()  # whose processes have no pid yet
        self._forked: dict[int, Supervised] = {}
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(server.sock, selectors.EVENT_READ)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="espnet3-workers", daemon=True)
        self._thread.start()

    def add(self, name: str, boot: Mapping[str, Any], memory: MemoryWatch, owner: Any = None) -> Supervised:
        """Add a worker, whose process is started at once, and another one whenever it dies."""
        worker = Supervised(name, boot, memory, owner)
        self.workers.append(worker)
        self._call(lambda: self._fork(worker))
        return worker

    def stop(self, worker: Supervised, grace: float = GRACE, word: bytes = b"stop\n") -> None:
        """End a worker for good, by force after so many seconds; its owner is told when it has ended."""
        worker.stopped = True
        self._call(lambda: self._stop(worker, grace, word))

    def is_whole(self) -> bool:
        """Return whether processes can be replaced, and none is given up."""
        return not self._without_server and not any(worker.given_up for worker in self.workers)

    def close(self, grace: float = GRACE) -> None:
        """End the processes and their server, and wait for that; in a forked child, where they are not its, nothing."""
        if self._closing or os.getpid() != self._pid:
            return
        self._closing = True
        for worker in list(self.workers):
            self.stop(worker, grace)
        self._wake()  # there may be none
        self._thread.join()
        for worker in self.workers:
            self._forget_socket(worker)
        self.server.close()
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()

    def leave(self) -> None:
        """End the processes without waiting: their server waits for them, when this process is gone."""
        if self._closing or os.getpid() != self._pid:
            return
        self._closing = True
        for worker in list(self.workers):
            worker.stopped = True
            worker.send(b"stop\n")
        self.server.leave()

    # --- the thread ---

    def _call(self, what: Callable[[], None]) -> None:
        self._calls.append(what)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it wakes anyway; or closed
            self._wake_w.send(b"!")

    def _serve(self) -> None:
        try:
            self._watch()
        except Exception as error:
            logger.exception("the thread that watches the workers cannot go on")
            for worker in self.workers:  # an error for their users, in place of a hang
                worker.given_up, worker.failure = True, f"they cannot be watched any more: {error!r}"
                worker.tell_owner()

    def _watch(self) -> None:
        gone = float("inf")  # when workers are no longer waited for to stop
        while not (self._closing and all(worker.ended or not worker.pid for worker in self.workers)):
            now = time.monotonic()
            if now > gone:
                return  # the server kills what is left
            if self._closing and gone == float("inf"):
                gone = now + 2 * GRACE
            until = min([gone, *(moment for worker in self.workers for moment, _ in self._duties(worker))])
            for key, _ in self._selector.select(None if until == float("inf") else max(0.0, until - now)):
                self._take(key.fileobj, key.data)
            while self._calls:
                self._calls.popleft()()
            for worker in list(self.workers):
                for moment, act in self._duties(worker):
                    if time.monotonic() >= moment:
                        act(worker)

    def _duties(self, worker: Supervised) -> Iterator[tuple[float, Callable[[Supervised], None]]]:
        if worker.pid and not worker.ended and worker.kill is not None:
            yield worker.kill, self._kill
        if worker.again is not None:
            yield worker.again, self._fork
        if worker.up and not worker.ended:
            yield worker.memory.next_look, lambda worker: worker.memory.look(worker.name, worker.pid)

    def _kill(self, worker: Supervised) -> None:
        worker.kill = time.monotonic() + _AGAIN  # one that has only just been forked leads no group yet
        kill_group(worker.pid)

    def _take(self, source: Any, worker: Supervised | None) -> None:
        if source is self._wake_r:
            with suppress(BlockingIOError):
                self._wake_r.recv(4096)
        elif source is self.server.sock:
            events = self.server.read_events()
            for kind, pid, status in events or ():
                if kind == b"P":
                    one = self._forked[pid] = self._asked.popleft()
                    one.pid = pid
                    self.exits.pop(pid, None)  # the number is in use again
                else:
                    self._on_exit(self._forked.pop(pid), pid, status)
            if events is None:
                self._selector.unregister(self.server.sock)
                self._without_server = True
                for one in self.workers:  # those that live are kept: their sockets still tell of their end
                    if one.sock is None or not one.pid:
                        self._lost(one)
        elif worker is not None and worker.sock is source:  # not closed by an event of the same round
            self._read(worker)

    def _fork(self, worker: Supervised) -> None:
        if self._without_server or worker.stopped:
            self._lost(worker)
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is free just now
            worker.failure = f"worker {worker.name} cannot be started: {error}"
            worker.again = time.monotonic() + _PAUSE
            return
        worker.again, worker.pid, worker.inbox, worker.failure = None, 0, b"", ""  # of the last process
        worker.up = worker.ended = worker.refused = False
        try:
            self.server.fork(theirs.fileno())
            self._asked.append(worker)
            blob = pickle.dumps(worker.boot)
            ours.sendall(SIZE.pack(len(blob)) + blob)
        except OSError:  # the server is gone, which its socket says too
            ours.close()
            return
        finally:
            theirs.close()
        worker.sock = ours
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _read(self, worker: Supervised) -> None:
        assert worker.sock is not None
        try:
            data = worker.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._forget_socket(worker)  # the server says how it ended
            if self._without_server:
                self._lost(worker)
            return
        worker.inbox += data
        while b"\n" in worker.inbox:
            line, worker.inbox = worker.inbox.split(b"\n", 1)
            answer = json.loads(line)
            if "error" in answer:
                worker.refused, worker.up = True, False
                worker.failure = f"worker {worker.name} did not start:\n{answer['error']}"
            elif "over" in answer:
                worker.over = True
            else:
                # the pid too: it may have answered before its server
                worker.up, worker.pid = True, answer["pid"]
                if worker.owner is not None:
                    worker.owner.started(answer)

    def _forget_socket(self, worker: Supervised) -> None:
        if worker.sock is not None:
            self._selector.unregister(worker.sock)
            worker.sock.close()
            worker.sock = None

    def _on_exit(self, worker: Supervised, pid: int, status: int) -> None:
        if worker.sock is not None:
            worker.sock.setblocking(False)
        while worker.sock is not None:  # read its last words; nothing more to read counts as the end
            self._read(worker)
        end = self.exits[pid] = worker.memory.end_of(pid, status)
        worker.ended = True
        if worker.stopped or worker.over:
            self._over(worker)
            return
        worker.failed = 0 if worker.up else worker.failed + 1
        worker.again = time.monotonic() + _PAUSE * worker.failed
        if worker.up:
            logger.info("worker %s (pid %s) has ended; starting another", worker.name, pid)
        elif not worker.failure:
            worker.failure = f"worker {worker.name} did not start: its process {end} while it was starting"
        if worker.failed >= _STARTS:
            worker.given_up, worker.again = True, None
            logger.error(
                "worker %s is given up after %d failed starts: %s", worker.name, _STARTS, worker.failure
            )
        worker.tell_owner()

    def _lost(self, worker: Supervised) -> None:
        if worker.pid and not worker.ended:
            kill_group(worker.pid)  # it may have closed its socket, and nothing else
            self.exits[worker.pid] = ProcessEnd()
        self._forget_socket(worker)
        worker.ended, worker.again = True, None
        if worker.stopped:
            self._over(worker)
            return
        worker.failure, worker.given_up = _NO_SERVER, True
        worker.tell_owner()

    def _stop(self, worker: Supervised, grace: float, word: bytes) -> None:
        if worker.ended:
            self._over(worker)
        else:
            told = grace > 0 and worker.send(word)
            worker.kill = time.monotonic() + (grace if told else 0.0)

    def _over(self, worker: Supervised) -> None:
        worker.again = worker.kill = None
        if worker in self.workers and not self._closing:  # `close` still looks at them
            self.workers.remove(worker)
        worker.tell_owner()


class SupervisedCluster(WorkerCluster):
    """A cluster whose workers are under a supervisor, as the driver sees it."""

    starts_at_once = True
    supervisor: Supervisor

    def end_of(self, host: str, pid: int) -> ProcessEnd | None:
        """Return how a process ended, once that is known."""
        return self.supervisor.exits.get(pid)

    def given_up(self) -> str | None:
        """Return why processes could not be replaced, once every one of them is given up."""
        workers = [worker for worker in list(self.supervisor.workers) if worker.owner is None]
        return workers[0].failure if workers and all(worker.given_up for worker in workers) else None

    def kill_worker(self, host: str, pid: int) -> None:
        """SIGKILL one process and what it started; another takes its place."""
        if any(worker.pid == pid and not worker.ended for worker in list(self.supervisor.workers)):
            kill_group(pid)

    def remove_at_end(self, folder: str) -> None:
        """Have the fork server remove a folder when it ends: it outlives a driver that is killed."""
        self.supervisor.server.remove_at_end(folder)

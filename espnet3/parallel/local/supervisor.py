"""Watches worker processes of our own from a thread: starts them, notices how they end, replaces them.

supervisor ──> fork server: starts a process, says how it ended
supervisor ──> each process: "check", "stop"; its end of the socket says that it is gone
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.parallel.backends.backend import GPU_VARIABLE
from espnet3.parallel.backends.gpus import pinned
from espnet3.parallel.local.fork_server import ForkServer, send_boot
from espnet3.parallel.local.forking import kill_group
from espnet3.parallel.local.memory_limit import MemoryWatch
from espnet3.parallel.records import ProcessEnd

logger = logging.getLogger(__name__)

# the rules of every kind of worker that is forked here
NO_SERVER = "the server that forks local workers is gone"
STARTS = 3  # failed starts in a row after which a worker is given up
PAUSE = 0.2  # seconds after the first of them; more after each further one
# workers in a row that may die at once: on a busy machine a deadly item can outrun the start's answer
EARLY = 20
GRACE = 2.0  # seconds a worker has to end by itself

_AT_ONCE = 0.5  # seconds after its start in which a worker that ends has ended early
_ANSWER = 1.0  # seconds that workers have to say whether they are as new


@dataclass(slots=True, eq=False)
class Worker:
    """A worker, and the process that it is now.

    Attributes:
        name: Its number.
        pid: Its process; 0 while that is not known.
        up: The process has started.
        ended: It has ended, and no other has been asked for yet.
        failure: Why the last one did not start; "" where none has failed.
        given_up: No other one is started.
    """

    name: str
    pid: int = 0
    up: bool = False
    ended: bool = False
    failure: str = ""
    given_up: bool = False
    _sock: socket.socket | None = None
    _inbox: bytes = b""
    _since: float = 0.0
    _again: float | None = None  # when the next one is started
    _failed: int = 0
    _early: int = 0


class Supervisor:
    """Keeps a number of worker processes alive. Its methods are for any thread unless they say otherwise.

    Args:
        server: Where processes come from.
        boot: What each is told (`pilot_process.run`), but for its name.
        memory_limit: As `LocalCluster` takes it, for each.
        gpus: The GPUs that they share out, one each; none: they see what this process sees.

    Attributes:
        workers: They.
        exits: How processes ended, by their pids.
    """

    def __init__(
        self, server: ForkServer, boot: dict[str, Any], memory_limit: Any, gpus: Sequence[str]
    ) -> None:
        self.workers: list[Worker] = []
        self.exits: dict[int, ProcessEnd] = {}
        self._server = server
        self._boot = boot
        self._memory = MemoryWatch(memory_limit, boot["threads"])
        self._gpus = gpus
        self._answers: dict[int, bool] = {}
        self._changed = threading.Condition()
        self._closing = self._killed = self._without_server = False
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(server.sock, selectors.EVENT_READ)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="espnet3-workers", daemon=True)

    def start(self, n: int) -> None:
        """Ask for the first processes; once."""
        self._fill(n)
        self._thread.start()

    def grow(self, n: int) -> None:
        """Have `n` processes at least."""
        if n > len(self.workers):
            self._call(lambda: self._fill(n))

    def are_as_new(self) -> bool:
        """Whether each process says so, in a second; those that are only starting are."""
        with self._changed:
            if self._without_server or any(worker.given_up for worker in self.workers):
                return False
            asked = [worker for worker in self.workers if worker.up]
            self._answers.clear()
            if not all(_send(worker, b"check\n") for worker in asked):
                return False
            answered = self._changed.wait_for(
                lambda: all(worker.pid in self._answers for worker in asked), _ANSWER
            )
            return answered and all(self._answers.values())

    def close(self, kill: bool) -> None:
        """End the processes and their server, and wait for that; once.

        Args:
            kill: At once, whatever they do; else each has two seconds to end by itself.
        """
        self._closing, self._killed = True, kill
        self._call(self._tell_to_stop)
        if self._thread.ident is not None:
            self._thread.join()
        for worker in self.workers:
            self._forget_socket(worker)
        self._server.close()
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()

    def leave(self) -> None:
        """End the processes without waiting: their server waits for them, when this process is gone."""
        self._closing = True
        for worker in self.workers:
            _send(worker, b"stop\n")
        self._server.leave()

    # --- the thread ---

    def _call(self, what: Callable[[], None]) -> None:
        self._calls.append(what)
        try:
            self._wake_w.send(b"!")
        except OSError:  # full: it wakes anyway; or closed
            pass

    def _serve(self) -> None:
        try:
            self._watch()
        except Exception as error:
            logger.exception("the thread that watches the workers cannot go on")
            for worker in self.workers:  # an error for who waits for them, in place of a hang
                worker.given_up, worker.failure = True, f"they cannot be watched any more: {error!r}"

    def _watch(self) -> None:
        end = float("inf")  # until when workers that are told to stop may take
        while not (self._closing and all(worker.ended or not worker.pid for worker in self.workers)):
            now = time.monotonic()
            if self._closing and end == float("inf"):
                end = now + GRACE
            pauses = [worker._again for worker in self.workers if worker._again is not None]
            until = min([end, self._memory.next_look, *pauses])
            for key, _ in self._selector.select(max(0.0, until - now)):
                self._take(key.fileobj, key.data)
            while self._calls:
                self._calls.popleft()()
            if self._closing:
                if time.monotonic() > end + GRACE:
                    return  # the server kills what is left
                if time.monotonic() > end:
                    self._kill_all()
            else:
                self._start_again()
                self._memory.look({w.name: w.pid for w in self.workers if w.up and not w.ended})

    def _start_again(self) -> None:
        now = time.monotonic()
        for worker in self.workers:
            if worker._again is not None and now >= worker._again:
                self._fork(worker)

    def _take(self, source: Any, worker: Worker | None) -> None:
        if source is self._wake_r:
            try:
                self._wake_r.recv(4096)
            except BlockingIOError:
                pass
        elif source is self._server.sock:
            if not self._server.read_events():
                self._selector.unregister(self._server.sock)
                self._server_gone()
        elif worker is not None and worker._sock is source:  # not closed by an event of the same round
            self._read(worker)

    def _fill(self, n: int) -> None:
        while len(self.workers) < n:
            worker = Worker(str(len(self.workers)))
            self.workers.append(worker)
            self._fork(worker)

    def _fork(self, worker: Worker) -> None:
        if self._without_server:
            self._lost(worker)
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is free just now
            worker.failure = f"worker {worker.name} cannot be started: {error}"
            worker._again = time.monotonic() + PAUSE
            return
        worker._again, worker.up, worker.ended, worker.pid, worker._inbox = None, False, False, 0, b""
        worker.failure = ""  # of an earlier start

        def on_pid(pid: int) -> None:
            worker.pid = pid
            if pid:
                self.exits.pop(pid, None)  # the number is in use again

        try:
            self._server.fork(theirs.fileno(), on_pid, lambda pid, status: self._on_exit(worker, pid, status))
            gpu = {GPU_VARIABLE: pinned(self._gpus, int(worker.name))} if self._gpus else {}
            send_boot(ours, {**self._boot, "name": worker.name, "env": {**self._boot["env"], **gpu}})
        except OSError:  # the server is gone, which its socket says too
            ours.close()
            return
        finally:
            theirs.close()
        worker._sock = ours
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _read(self, worker: Worker) -> None:
        assert worker._sock is not None
        try:
            data = worker._sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._forget_socket(worker)  # the server says how it ended
            if self._without_server:
                self._lost(worker)
            return
        worker._inbox += data
        while b"\n" in worker._inbox:
            line, worker._inbox = worker._inbox.split(b"\n", 1)
            answer = json.loads(line)
            if "as_new" in answer:
                with self._changed:
                    self._answers[worker.pid] = answer["as_new"]
                    self._changed.notify_all()
            elif "error" in answer:
                worker.failure = f"worker {worker.name} did not start:\n{answer['error']}"
            else:
                worker.up, worker._since = True, time.monotonic()

    def _forget_socket(self, worker: Worker) -> None:
        if worker._sock is not None:
            self._selector.unregister(worker._sock)
            worker._sock.close()
            worker._sock = None

    def _on_exit(self, worker: Worker, pid: int, status: int) -> None:
        if worker._sock is not None:
            self._read_rest(worker)
        end = self._memory.end_of(pid, status)
        self.exits[pid] = end
        self._forget_socket(worker)
        worker.ended = True
        with self._changed:  # nobody waits for an answer of its
            self._answers.setdefault(pid, False)
            self._changed.notify_all()
        if self._closing:
            return
        if worker.up:
            logger.info("worker %s (pid %s) has ended; starting another", worker.name, pid)
            if time.monotonic() - worker._since > _AT_ONCE:
                worker._early = 0
            worker._early += 1
            worker._failed, worker._again = 0, time.monotonic()
            worker.failure = f"worker {worker.name} ended as soon as it had started"
        else:
            worker._failed += 1
            worker.failure = worker.failure or (
                f"worker {worker.name} did not start: its process {end} while it was starting"
            )
            worker._again = time.monotonic() + PAUSE * worker._failed
        if worker._failed >= STARTS or worker._early >= EARLY:
            self._give_up(worker)

    def _read_rest(self, worker: Worker) -> None:
        """Read what an ended process had said."""
        assert worker._sock is not None
        worker._sock.setblocking(False)
        while worker._sock is not None:
            try:
                waiting = worker._sock.recv(1, socket.MSG_PEEK)
            except OSError:
                return
            self._read(worker)
            if not waiting:
                return

    def _give_up(self, worker: Worker) -> None:
        worker.given_up, worker._again = True, None
        logger.error(
            "worker %s is given up after %d failed starts: %s",
            worker.name,
            max(worker._failed, worker._early),
            worker.failure,
        )

    def _server_gone(self) -> None:
        """Keep the processes that are there, as long as they live: who has their sockets still hears of their end."""
        self._without_server = True
        for worker in self.workers:
            if worker._sock is None or not worker.pid:
                self._lost(worker)

    def _lost(self, worker: Worker) -> None:
        """Note the end of a process that nobody waits for, or that cannot be started, and that none can replace."""
        if worker.pid and not worker.ended:
            kill_group(worker.pid)  # it may have closed its socket, and nothing else
            self.exits[worker.pid] = ProcessEnd()
        self._forget_socket(worker)
        worker.ended, worker._again, worker.failure = True, None, NO_SERVER
        worker.given_up = not self._closing

    def _tell_to_stop(self) -> None:
        if self._killed:
            self._kill_all()
            return
        for worker in self.workers:
            if not worker.ended and not _send(worker, b"stop\n"):
                kill_group(worker.pid)

    def _kill_all(self) -> None:
        for worker in self.workers:
            if worker.pid and not worker.ended:
                kill_group(worker.pid)


def _send(worker: Worker, line: bytes) -> bool:
    """Send a line to a worker; False if it is not there."""
    if worker._sock is None:
        return False
    try:
        worker._sock.sendall(line)
    except OSError:
        return False
    return True

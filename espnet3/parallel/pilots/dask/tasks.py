"""The fallback where workers cannot connect to the driver: the same chunks as ordinary Dask tasks.

    driver ──channel──> TaskSlots ──task──> run_task ──> a pilot of the worker's process
           <──────────            <── frames ──

The slots are this process's own, so that a run finds them in its pool like any other. A task costs a scheduler's round
trip per chunk (a millisecond or two, against a tenth).
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import weakref
from collections import Counter, defaultdict
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

from distributed import get_worker
from distributed.scheduler import KilledWorker

from espnet3.parallel.pilots.channel import Channel, ChannelClosedError, Mark
from espnet3.parallel.pilots.pool import Pool
from espnet3.parallel.pilots.protocol import Hello, setup_report
from espnet3.parallel.pilots.worker import Pilot, Slots

# --- on a worker ---


class _TaskPilot(Pilot):
    end = staticmethod(lambda: None)


class _Inside(Channel):
    def __init__(self) -> None:
        # without a socket: tasks put messages, and take the frames that would go through it
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.frames: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.busy = False  # a task waits for its frames
        self.runs: set[int] = set()
        self._kind = "done"

    def readable(self) -> bool:
        return not self.messages.empty()

    def writable(self) -> bool:
        return True

    def recv(self) -> Any:
        message = self.messages.get()
        if message is None:
            raise ChannelClosedError("no task comes any more")
        return message

    def send(self, obj: Any) -> None:
        self._kind = obj[0]
        try:
            super().send(obj)
        finally:
            self._kind = "done"  # which is sent in parts

    def _write(self, parts: list[Any]) -> None:
        self.frames.put((self._kind, b"".join(parts)))

    def close(self) -> None:
        """Do nothing: there is nothing open."""


_lock = threading.Lock()
_insides: defaultdict[str, list[_Inside]] = defaultdict(list)


def run_task(pool: str, run: tuple[Any, ...], chunk: tuple[Any, ...]) -> list[bytes]:
    """Have a pilot of this process run one chunk of items; return its messages as they travel."""
    with _lock:
        inside = next((each for each in _insides[pool] if not each.busy), None)
        if inside is None:
            inside, worker = _Inside(), get_worker()
            process = os.getpid(), socket.gethostname()
            hello = Hello(str(worker.name), worker.address, *process, worker.state.nthreads)
            pilot = _TaskPilot(inside, Slots("", b"", ("", 0), False, hello), Mark(""))
            threading.Thread(target=pilot.serve, name="pilot", daemon=True).start()
            _insides[pool].append(inside)
        inside.busy = True
    if run[1] not in inside.runs:
        inside.runs.add(run[1])
        inside.messages.put(run)
    inside.messages.put(chunk)
    frames: list[bytes] = []
    kind = "ready"
    while kind in ("ready", "log"):
        kind, frame = inside.frames.get()
        if kind != "ready":  # the driver has been told
            frames.append(frame)
    with _lock:
        if kind in ("done", "unread"):
            inside.busy = False
        else:  # it is of no more use to the run, or is inside an item
            inside.messages.put(None)
            _insides[pool].remove(inside)
    return frames


async def forget_run(pool: str, run_id: int) -> None:
    """Forget a run in this worker's process (a coroutine: `Client.run` waits for anything else)."""
    with _lock:
        for inside in _insides[pool]:
            inside.runs.discard(run_id)
            inside.messages.put(("end", run_id))


# --- in the driver ---


class TaskSlots(Slots):
    """Slots of a client's pool whose chunks are run by tasks, one for each thread of the client's workers."""

    def __init__(self, client: Any, pool: Pool) -> None:
        encrypted = client.scheduler.address.startswith("tls")
        tls = client.security.get_connection_args("client")["ssl_context"] if encrypted else None
        # the scheduler chooses which worker runs a task, and Dask blames a death on every task that the
        # worker had queued: the driver takes all slots for one process, so that a suspect runs all alone
        hello = Hello("a Dask worker", pool.name, 0, "", threads=1)
        super().__init__(pool.address, pool.key, hello.process, False, hello, tls)
        self._client = weakref.proxy(client)  # which closes the pool when it goes, and so ends the threads
        self._pool = pool.name
        self._at: Counter[int] = Counter()  # slots in each of the workers' threads
        self._ended = 0

    def open(self) -> None:
        """Open the slots of workers that have come since the last call, and one for a run beside the first."""
        threads = sum(w["nthreads"] for w in self._client.scheduler_info(n_workers=-1)["workers"].values())
        with self._lock:
            for at in range(max(1, threads)):
                self._at.setdefault(at, 0)
            while self._open <= max(1, threads):
                self._start()

    def _slot(self) -> None:
        with self._lock:
            at = min(self._at, key=self._at.__getitem__)
            self._at[at] += 1
        hello = replace(self.hello, address=f"{self._pool}/{at}")
        while (channel := self._connect(hello)) is not None:
            place: Any = _Place(channel)
            with self._lock:
                self._pilots.add(place)
            try:
                self._carry(channel, place)
            except (OSError, KilledWorker, CancelledError):  # closed by the driver, or a worker was lost
                channel.close()
            except RuntimeError:  # the client is closed
                channel.close()
                break
            finally:
                with self._lock:
                    self._pilots.discard(place)
        with self._lock:
            self._open, self._at[at] = self._open - 1, self._at[at] - 1

    def _carry(self, channel: Channel, place: _Place) -> None:
        run: tuple[Any, ...] = ()
        while True:
            message = channel.recv()
            place.in_run = message[0] != "end"
            if message[0] == "run":
                run = message
                self.keep_one_free()
                channel.send(("ready", message[1]))
            elif message[0] == "chunk":
                task = self._client.submit(run_task, self._pool, run, message, pure=False)
                try:
                    # waits, too, for one that died with its worker and is computed again
                    frames = task.result()
                except (OSError, KilledWorker, CancelledError):
                    raise
                except Exception as error:  # the worker has no such package, for example
                    channel.send(("setup", message[1], setup_report(error, self.hello.worker)))
                    continue
                for frame in frames:
                    channel.sock.sendall(frame)
            elif message[1] != self._ended:  # every slot is told, and once is enough
                self._ended = message[1]
                self._client.run(forget_run, self._pool, message[1], wait=False, on_error="ignore")


@dataclass(eq=False)
class _Place:
    channel: Channel
    in_run: bool = False
    busy: bool = False  # as far as this process's end is concerned

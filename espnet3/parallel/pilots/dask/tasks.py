"""The fallback where workers cannot connect to the driver: the same chunks as ordinary Dask tasks.

A `TaskPool` gives out slots as a `Pool` does. A chunk that is sent to one becomes a task: a pilot of the worker's
process runs it, and the task's result holds its answers. It costs a scheduler's round trip per chunk (a
millisecond or two, against a tenth), so it is used only when no pilot has come and workers are there.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
from collections import defaultdict
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from distributed import get_worker
from distributed.scheduler import KilledWorker

from espnet3.parallel.pilots.channel import ChannelClosedError, Mark, pickle_parts
from espnet3.parallel.pilots.pool import Slot, SlotClaim
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.pilots.worker import Pilot, Slots

# --- on a worker ---


class Answer(NamedTuple):
    """A pickled message of a pilot, and the address of its worker."""

    worker: str
    data: bytes
    buffers: list[bytearray]


class _TaskPilot(Pilot):
    end = staticmethod(lambda: None)


class _Inside:
    def __init__(self, worker: Any) -> None:
        self.busy = False  # a task waits for its answers
        self.runs: set[int] = set()
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        self._address = worker.address
        threads = worker.state.nthreads
        hello = Hello(str(worker.name), worker.address, os.getpid(), socket.gethostname(), threads)
        channel: Any = self
        pilot = _TaskPilot(channel, Slots("", b"", ("", 0), False, hello), Mark(""))
        threading.Thread(target=pilot.serve, name="pilot", daemon=True).start()

    def readable(self) -> bool:
        return not self.messages.empty()

    def writable(self) -> bool:
        return True

    def at_end(self) -> bool:
        return False

    def recv(self) -> Any:
        message = self.messages.get()
        if message is None:
            raise ChannelClosedError("no task comes any more")
        return message

    def send(self, message: Any) -> None:
        self._answer(message[0], *pickle_parts(message))

    def send_parts(self, out: Any, buffers: Any) -> None:
        self._answer("done", out, buffers)

    def _answer(self, kind: str, out: Any, buffers: Any) -> None:
        self.answers.put((kind, Answer(self._address, *_joined(out, buffers))))

    def close(self) -> None:
        """Do nothing: there is nothing open."""


_lock = threading.Lock()
_pilots: defaultdict[str, list[_Inside]] = defaultdict(list)


def run_task(pool: str, run: tuple[Any, ...], data: bytes, buffers: list[bytearray]) -> list[Answer]:
    """Have a pilot of this process run one chunk of items; return its messages."""
    with _lock:
        pilot = next((each for each in _pilots[pool] if not each.busy), None)
        if pilot is None:
            pilot = _Inside(get_worker())
            _pilots[pool].append(pilot)
        pilot.busy = True
    if run[1] not in pilot.runs:
        pilot.runs.add(run[1])
        pilot.messages.put(run)
    pilot.messages.put(pickle.loads(data, buffers=buffers))
    answers: list[Answer] = []
    kind = "ready"
    while kind in ("ready", "log"):
        kind, answer = pilot.answers.get()
        if kind != "ready":  # that the driver has taken for granted
            answers.append(answer)
    with _lock:
        if kind in ("done", "unread"):
            pilot.busy = False
        else:  # it is of no more use to the run, or is inside an item
            pilot.messages.put(None)
            _pilots[pool].remove(pilot)
    return answers


async def forget_run(pool: str, run_id: int) -> None:
    """Forget a run in this worker's process (a coroutine: `Client.run` waits for anything else)."""
    with _lock:
        for pilot in _pilots[pool]:
            pilot.runs.discard(run_id)
            pilot.messages.put(("end", run_id))


def _joined(out: Any, buffers: Any) -> tuple[bytes, list[bytearray]]:
    return b"".join(bytes(part) for part in out.parts), [bytearray(each.raw()) for each in buffers]


# --- in the driver ---


class TaskChannel:
    """A slot's channel with Dask tasks behind it in place of a connection."""

    def __init__(self, pool: TaskPool) -> None:
        self.received, self.trip = 0, 0.0  # tasks count as near
        self._pool = pool
        self._answers: queue.Queue[Any] = queue.Queue()
        self._ready_r, self._ready_w = socket.socketpair()
        self._run: tuple[Any, ...] = ()
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()  # futures; None: it is closed
        threading.Thread(target=self._fetch, name="task-results", daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable while an answer waits."""
        return self._ready_r.fileno()

    def buffered(self) -> bool:
        """Return False: each answer is announced."""
        return False

    def close(self) -> None:
        """Close it; answers still to come are dropped."""
        self._sent.put(None)
        self._ready_r.close()
        self._ready_w.close()

    def send(self, message: Any) -> None:
        """Take a run's spec (kept for its chunks) or the end of a run."""
        if message[0] == "run":
            self._run = message
            self._put(("ready", message[1]))
        elif message[0] == "end":
            self._pool.end(message[1])

    def send_parts(self, out: Any, buffers: Any) -> None:
        """Submit a chunk."""
        chunk = _joined(out, buffers)
        self._sent.put(self._pool.client.submit(run_task, self._pool.name, self._run, *chunk, pure=False))

    def _fetch(self) -> None:
        while (future := self._sent.get()) is not None:
            answer = _answer_of(future)
            for message in answer if isinstance(answer, list) else [answer]:
                self._put(message)

    def _put(self, answer: Any) -> None:
        self._answers.put(answer)
        try:
            self._ready_w.send(b"!")
        except OSError:  # closed: the run is over
            pass

    def recv(self) -> Any:
        """Return the next answer."""
        self._ready_r.recv(1)
        answer = self._answers.get_nowait()
        if isinstance(answer, Answer):
            self.received = len(answer.data) + sum(map(len, answer.buffers))
            message = pickle.loads(answer.data, buffers=answer.buffers)
            if message[0] == "done":
                message[2]["worker"] = answer.worker
            return message
        if isinstance(answer, (KilledWorker, ChannelClosedError)):
            raise ChannelClosedError(str(answer))
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _answer_of(future: Any) -> Any:
    try:
        return future.result()  # waits for a result that has just died with its worker, and is computed again
    except CancelledError:
        return ChannelClosedError("the task was cancelled")
    except Exception as error:  # the task's, or the scheduler or its connection is gone; `recv` raises it
        return error


class TaskPool:
    """A `SlotSource` whose slots are places in a sliding window of tasks."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.connected = True
        self._claims: list[SlotClaim] = []
        self._room = 0
        self._ended = 0

    @property
    def busy(self) -> bool:
        """Whether a run uses it."""
        return bool(self._claims)

    def claim(self) -> SlotClaim:
        """Open a claim, whose slots are there at once."""
        claim = SlotClaim(self)
        self._claims.append(claim)
        threads = sum(w["nthreads"] for w in self.client.scheduler_info(n_workers=-1)["workers"].values())
        self._room = max(1, threads)
        return claim

    def take(self, claim: SlotClaim) -> list[Slot]:
        """Hand out new slots: as many as the workers have threads, and one for each that was lost."""
        fresh, self._room = self._room, 0
        return [self._slot() for _ in range(fresh)]

    def _slot(self) -> Slot:
        # the scheduler chooses which worker runs a task, and Dask blames a death on every task that the
        # worker had queued: the driver takes all slots for one process, so that a suspect runs all alone
        hello = Hello("a Dask worker", self.name, 0, "", threads=1 << 30)
        channel: Any = TaskChannel(self)
        return Slot(channel, hello)

    def shared(self, claim: SlotClaim, process: tuple[str, int]) -> bool:
        """Return False: a process is not known by its tasks."""
        return False

    def forget(self, claim: SlotClaim, slot: Slot) -> None:
        """Close a slot; another takes its place."""
        slot.channel.close()
        self._room += 1  # others may be lost at the same moment
        for each in self._claims:
            each.wake()

    def give_back(self, claim: SlotClaim, slots: list[Slot]) -> None:
        """Close a claim, with its slots."""
        self._claims.remove(claim)
        for slot in slots:
            slot.channel.close()

    def end(self, run_id: int) -> None:
        """Have the workers forget a run; every slot asks for it, and once is enough."""
        if run_id == self._ended:
            return
        self._ended = run_id
        self.client.run(forget_run, self.name, run_id, wait=False, on_error="ignore")

    def close(self) -> None:
        """Do nothing: there is nothing open."""

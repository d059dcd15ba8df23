"""The fallback where workers cannot connect to the driver: the same chunks as ordinary Dask tasks.

A `TaskPool` gives out slots as a `Pool` does; what is sent to one becomes a task, and its result
is read from it like a message. It costs a scheduler's round trip per chunk (a millisecond or two,
against a tenth), so it is used only when no pilot has come and workers are there.
"""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

from distributed import get_worker
from distributed.scheduler import KilledWorker

from espnet3.parallel.dask_compat import threads_of
from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.loop import on_a_worker, run_items
from espnet3.parallel.engine.settling import Block
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.engine.watch import Late, Report
from espnet3.parallel.env.store import SetupWatch
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.log_records import Hearing, Outlet
from espnet3.parallel.pilots.protocol import (
    Done,
    Hello,
    RunSpec,
    SetupReport,
    forget,
    head_of,
    portable,
    prepare,
    setup_report,
    unread,
)
from espnet3.parallel.pilots.slot import Slot, SlotClaim


@dataclass(frozen=True, slots=True)
class _Here:
    """The Dask worker that runs a task; only the task's own thread can ask for it.

    Attributes:
        name: Its name, for messages.
        address: Its address.
        threads: How many tasks it runs at once.
    """

    name: str
    address: str
    threads: int


_calls: dict[tuple[str, int], tuple[Call, RunSpec]] = {}
_lock = threading.Lock()


def run_task(
    pool: str, run_id: int, blob: bytes, hearing: Hearing, items: Any, positions: Any, budget: float
) -> list[bytes]:
    """Run one chunk of items on a worker; returns the pickled messages that a pilot would have sent."""
    outlet = Outlet(str(get_worker().name))
    outlet.hear(hearing)
    with outlet.open(run_id):
        answer = _answer(pool, run_id, blob, items, positions, budget)
    logged = outlet.take()
    return [answer] if logged is None else [pickling.dumps(("log", run_id, logged)), answer]


def _answer(pool: str, run_id: int, blob: bytes, items: Any, positions: Any, budget: float) -> bytes:
    worker = get_worker()
    here = _Here(str(worker.name), worker.address, threads_of(worker))
    late: queue.Queue[SetupReport] = queue.Queue()
    with _lock:
        known = _calls.get((pool, run_id))
        if known is None:
            answer = _prepare(blob, here.name, late)
            if isinstance(answer, SetupReport):
                return pickling.dumps(("setup", run_id, answer))
            known = _calls[pool, run_id] = answer
    call, spec = known
    if isinstance(items, bytes):
        try:
            items = pickle.loads(items)
        except ANYTHING as error:  # whatever user classes raise, the driver must hear of it
            return pickling.dumps(unread(run_id, error, here.name))
    if spec.policy.item_timeout is None:
        return _run(run_id, items, positions, budget, call, spec, here)
    return _run_in_time(run_id, items, positions, budget, call, spec, here)


def _run(
    run_id: int,
    items: Any,
    positions: Any,
    budget: float,
    call: Call,
    spec: RunSpec,
    here: _Here,
    report: Report | None = None,
) -> bytes:
    with on_a_worker(report):
        block = run_items(items, call, spec.policy, here.name, budget)
    block.cpu /= here.threads  # all of them ran meanwhile
    if positions is not None:
        from espnet3.parallel.engine.recording import to_lines  # 20 ms that a first result need not wait for

        to_lines(block, positions, items, spec.policy, here.name)
    answer = _message(run_id, items, block, spec, here)
    block.error = None  # its traceback leads to this frame, and the frame to it
    return answer


def _run_in_time(
    run_id: int, items: Any, positions: Any, budget: float, call: Call, spec: RunSpec, here: _Here
) -> bytes:
    """Run items in a thread of their own, and leave it behind in an item that takes too long.

    A worker that killed itself would take the answer with it, and Dask would run the task again.
    """
    answer: queue.Queue[Any] = queue.Queue()

    def report(late: Late) -> None:
        answer.put(pickle.dumps(("late", run_id, late), 5))

    def work() -> None:
        try:
            answer.put(_run(run_id, items, positions, budget, call, spec, here, report))
        except BaseException as error:  # raised where the task is waited for
            answer.put(error)

    threading.Thread(target=work, name="items-in-time", daemon=True).start()
    first = answer.get()
    if isinstance(first, BaseException):
        raise first
    return first  # type: ignore[no-any-return]  # the message put above


def _prepare(blob: bytes, worker: str, late: queue.Queue[SetupReport]) -> tuple[Call, RunSpec] | SetupReport:
    """Build the env in a thread of its own: a task, unlike a pilot, can only answer by returning."""
    spec: RunSpec = pickle.loads(blob)

    done: Any = late

    def build() -> None:
        with SetupWatch(
            spec.setup_timeout, lambda text: late.put(SetupReport(f"on worker {worker}: {text}"))
        ):
            try:
                done.put((prepare(spec), spec))
            except BaseException as error:  # whatever user code does here, the driver must hear of it
                done.put(setup_report(error, worker))

    threading.Thread(target=build, name="env-build", daemon=True).start()
    return done.get()  # type: ignore[no-any-return]  # the first of: built, failed, late


def _message(run_id: int, items: Any, block: Block, spec: RunSpec, here: _Here) -> bytes:
    def message(head: Done, values: list[Any]) -> bytes:
        return pickling.dumps(("done", run_id, replace(head, worker=here.address).fields(), values))

    try:
        return message(head_of(block), block.values)
    except ANYTHING:  # some result cannot travel: find it
        values, head = portable(items, block, spec.policy, here.name)
        return message(head, values)


async def forget_run(pool: str, run_id: int) -> None:
    """Forget a run in this worker's process (a coroutine: `Client.run` waits for anything else)."""
    with _lock:
        _, spec = _calls.pop((pool, run_id), (None, None))
    if spec is not None:
        forget(spec)


class TaskChannel:
    """A `SlotChannel` with Dask tasks behind it in place of a connection.

    Args:
        pool: Whose slot it serves.
    """

    def __init__(self, pool: TaskPool) -> None:
        self.received = 0
        self._pool = pool
        self._answers: queue.Queue[Any] = queue.Queue()
        self._ready_r, self._ready_w = socket.socketpair()
        self._blob = b""
        self._hearing: Any = None
        self._sent: deque[Any] = deque()
        self._called: set[str] = set()  # what of it has called back
        self._order = threading.Lock()

    def fileno(self) -> int:
        """Return a descriptor that is readable while an answer waits."""
        return self._ready_r.fileno()

    def readable(self) -> bool:
        """Whether an answer waits."""
        return not self._answers.empty()

    def buffered(self) -> bool:
        """Never: each answer is announced."""
        return False

    def at_end(self) -> bool:
        """Never: tasks have no connection that could end."""
        return False

    def close(self) -> None:
        """Close it; answers still to come are dropped."""
        self._ready_r.close()
        self._ready_w.close()

    def send(self, message: Any) -> None:
        """Take a run's spec (kept for its chunks) or the end of a run."""
        if message[0] == "run":
            self._blob, self._hearing = message[2], message[5]
            self._put(("ready", message[1]))
        elif message[0] == "end":
            self._pool.end(message[1])

    def send_parts(self, out: Any, buffers: Any) -> None:
        """Submit a chunk."""
        data = b"".join(bytes(part) for part in out.parts)
        _, run_id, items, _, _, *rest = pickle.loads(data, buffers=[b.raw() for b in buffers])
        future = self._pool.client.submit(
            run_task, self._pool.name, run_id, self._blob, self._hearing, items, *rest, pure=False, key=None
        )
        with self._order:
            self._sent.append(future)
        future.add_done_callback(self._finished)

    def _finished(self, future: Any) -> None:
        """Pass on what has finished, in the order it was sent: the driver relies on a channel's order."""
        with self._order:
            self._called.add(future.key)
            while self._sent and self._sent[0].done():
                first = self._sent.popleft()
                self._called.discard(first.key)
                answer = _answer_of(first)
                for message in answer if isinstance(answer, list) else [answer]:
                    self._put(message)
            if self._sent and self._sent[0].key in self._called:
                # its worker died with the result, it runs again, and Dask calls back once for each asking
                self._called.discard(self._sent[0].key)
                self._sent[0].add_done_callback(self._finished)

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
        if isinstance(answer, bytes):
            self.received = len(answer)
            return pickle.loads(answer)
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
    """A `SlotSource` whose slots are places in a sliding window of tasks.

    Args:
        client: The client whose workers run the tasks.
        name: A name that no other pool on these workers has.
    """

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
        return Slot(TaskChannel(self), hello)

    def shared(self, claim: SlotClaim, process: tuple[str, int]) -> bool:
        """Never: a process is not known by its tasks."""
        return False

    def ask_for_more(self) -> None:
        """Nothing to do: a task waits at the scheduler."""

    def forget(self, claim: SlotClaim, slot: Slot) -> None:
        """Close a slot; another takes its place."""
        slot.channel.close()
        self._room = 1
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
        """Nothing is kept open."""

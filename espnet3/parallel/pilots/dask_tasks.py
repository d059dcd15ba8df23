"""The fallback where workers cannot connect to the driver: the same runs as ordinary Dask tasks.

A `TaskPool` gives out slots as a `Pool` does; what is sent to one becomes a task, and its result
is read from it like a message. It costs a scheduler's round trip per run (a millisecond or two,
against a tenth), so it is used only when no pilot has come and workers are there.
"""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from collections import deque
from typing import Any

from distributed import get_worker
from distributed.scheduler import KilledWorker

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.loop import Block, on_a_worker, run_items
from espnet3.parallel.engine.steps import Call
from espnet3.parallel.engine.watch import Late, Report
from espnet3.parallel.env.store import ENVS, SetupWatch
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.pool import Lease
from espnet3.parallel.pilots.protocol import (
    Hello,
    Job,
    SetupReport,
    head_of,
    portable,
    prepare,
    setup_report,
)
from espnet3.parallel.pilots.slot import Slot

_calls: dict[tuple[str, int], tuple[Call, Job]] = {}
_lock = threading.Lock()


def run_task(pool: str, job_id: int, blob: bytes, items: Any, positions: Any, budget: float) -> bytes:
    """Run one run of items on a worker; returns the pickled message a pilot would have sent."""
    worker = str(get_worker().name)
    late: queue.Queue[SetupReport] = queue.Queue()
    with _lock:
        known = _calls.get((pool, job_id))
        if known is None:
            answer = _prepare(blob, worker, late)
            if isinstance(answer, SetupReport):
                return pickling.dumps(("setup", job_id, answer))
            known = _calls[pool, job_id] = answer
    call, job = known
    if isinstance(items, bytes):
        items = pickle.loads(items)
    if job.policy.item_timeout is None:
        return _run(job_id, items, positions, budget, call, job, worker)
    return _run_in_time(job_id, items, positions, budget, call, job, worker)


def _run(
    job_id: int,
    items: Any,
    positions: Any,
    budget: float,
    call: Call,
    job: Job,
    worker: str,
    report: Report | None = None,
) -> bytes:
    with on_a_worker(report):
        block = run_items(items, call, job.policy, worker, budget)
    if positions is not None:
        from espnet3.parallel.engine.recording import to_lines  # 20 ms that a first result need not wait for

        to_lines(block, positions, items, job.policy, worker)
    return _message(job_id, items, block, job, worker)


def _run_in_time(
    job_id: int, items: Any, positions: Any, budget: float, call: Call, job: Job, worker: str
) -> bytes:
    """Run items in a thread of their own, and leave it behind in an item that takes too long.

    A worker that killed itself would take the answer with it, and Dask would run the task again.
    """
    answer: queue.Queue[Any] = queue.Queue()

    def report(late: Late) -> None:
        answer.put(pickle.dumps(("late", job_id, late), 5))

    def work() -> None:
        try:
            answer.put(_run(job_id, items, positions, budget, call, job, worker, report))
        except BaseException as error:  # raised where the task is waited for
            answer.put(error)

    threading.Thread(target=work, name="items-in-time", daemon=True).start()
    first = answer.get()
    if isinstance(first, BaseException):
        raise first
    return first  # type: ignore[no-any-return]  # the message put above


def _prepare(blob: bytes, worker: str, late: queue.Queue[SetupReport]) -> tuple[Call, Job] | SetupReport:
    """Build the env in a thread of its own: a task, unlike a pilot, can only answer by returning."""
    job: Job = pickle.loads(blob)

    done: Any = late

    def build() -> None:
        with SetupWatch(job.setup_timeout, lambda text: late.put(SetupReport(f"on worker {worker}: {text}"))):
            try:
                done.put((prepare(job), job))
            except BaseException as error:  # whatever user code does here, the driver must hear of it
                done.put(setup_report(error, worker))

    threading.Thread(target=build, name="env-build", daemon=True).start()
    return done.get()  # type: ignore[no-any-return]  # the first of: built, failed, late


def _message(job_id: int, items: Any, block: Block, job: Job, worker: str) -> bytes:
    head = head_of(block)
    try:
        return pickling.dumps(("done", job_id, head.fields(), block.values))
    except ANYTHING:  # some result cannot travel: find it
        values, head = portable(items, block, job.policy, worker)
        return pickling.dumps(("done", job_id, head.fields(), values))


async def end_job(pool: str, job_id: int) -> None:
    """Forget a job in this worker's process (a coroutine: `Client.run` waits for anything else)."""
    with _lock:
        _, job = _calls.pop((pool, job_id), (None, None))
    if job is not None and job.env_key and job.setup is not None:
        ENVS.drop(job.env_key)


class TaskChannel:
    """Looks like a pilot's channel to the driver's loop; behind it are Dask tasks.

    Args:
        pool: Whose slot it serves.
    """

    def __init__(self, pool: TaskPool) -> None:
        self.received = 0
        self._pool = pool
        self._answers: queue.Queue[Any] = queue.Queue()
        self._ready_r, self._ready_w = socket.socketpair()
        self._blob = b""
        self._sent: deque[Any] = deque()
        self._order = threading.Lock()

    def fileno(self) -> int:
        """Return a descriptor that is readable while an answer waits."""
        return self._ready_r.fileno()

    def buffered(self) -> bool:
        """Never: each answer is announced."""
        return False

    def close(self) -> None:
        """Close it; answers still to come are dropped."""
        self._ready_r.close()
        self._ready_w.close()

    def send(self, message: Any) -> None:
        """Take a job (kept for its runs) or the end of one."""
        if message[0] == "job":
            self._blob = message[2]
            self._put(("ready", message[1]))
        elif message[0] == "end":
            self._pool.end(message[1])

    def send_parts(self, out: Any, buffers: Any) -> None:
        """Submit a run."""
        data = b"".join(bytes(part) for part in out.parts)
        _, job_id, items, _, _, *rest = pickle.loads(data, buffers=[b.raw() for b in buffers])
        future = self._pool.client.submit(
            run_task, self._pool.name, job_id, self._blob, items, *rest, pure=False, key=None
        )
        with self._order:
            self._sent.append(future)
        future.add_done_callback(self._finished)

    def _finished(self, _: Any) -> None:
        """Hand over what has finished, in the order it was sent: the loop counts on a channel's order."""
        with self._order:
            while self._sent and self._sent[0].done():
                self._put(_answer_of(self._sent.popleft()))

    def _put(self, answer: Any) -> None:
        self._answers.put(answer)
        try:
            self._ready_w.send(b"!")
        except OSError:  # closed: the job is over
            pass

    def recv(self) -> Any:
        """Return the next answer.

        Raises:
            ChannelClosedError: The worker that ran it died.
        """
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
    if future.status != "finished":
        return future.exception() or ChannelClosedError("the task was cancelled")
    try:
        return future.result()
    except Exception as error:  # the scheduler or its connection is gone; `recv` raises it
        return error


class TaskPool:
    """As `Pool`, for the driver's loop; its slots are places in a sliding window of tasks.

    Args:
        client: The client whose workers run the tasks.
        name: A name that no other pool on these workers has.
    """

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.met = True
        self._leases: list[Lease] = []
        self._room = 0
        self._ended = 0

    @property
    def busy(self) -> bool:
        """Whether a job runs on it."""
        return bool(self._leases)

    def lease(self) -> Lease:
        """Open a lease; its slots are there at once."""
        lease = Lease(self)  # type: ignore[arg-type]  # gives what a Lease asks of a Pool
        self._leases.append(lease)
        threads = sum(w["nthreads"] for w in self.client.scheduler_info(n_workers=-1)["workers"].values())
        self._room = max(1, threads)
        return lease

    def _take(self, lease: Lease) -> list[Slot]:
        fresh, self._room = self._room, 0
        return [self._slot() for _ in range(fresh)]

    def _slot(self) -> Slot:
        # which worker runs a task is the scheduler's choice, and Dask blames a death on all that the
        # worker had queued: to the loop they are one process, so that a suspect goes all alone
        hello = Hello("a Dask worker", self.name, 0, "", threads=1 << 30)
        return Slot(TaskChannel(self), hello)  # type: ignore[arg-type]  # speaks as a Channel does

    def shared(self, lease: Lease, process: tuple[str, int]) -> bool:
        """Never: a process is not known by its tasks."""
        return False

    def ask_for_more(self) -> None:
        """Nothing to do: a task waits at the scheduler."""

    def _forget(self, lease: Lease, slot: Slot) -> None:
        slot.channel.close()
        self._room = 1
        for each in self._leases:
            each.wake()

    def _give_back(self, lease: Lease, slots: list[Slot]) -> None:
        self._leases.remove(lease)
        for slot in slots:
            slot.channel.close()

    def end(self, job_id: int) -> None:
        """Have the workers forget a job; every slot says so, and once is enough."""
        if job_id == self._ended:
            return
        self._ended = job_id
        self.client.run(end_job, self.name, job_id, wait=False, on_error="ignore")

    def close(self) -> None:
        """Nothing is kept open."""

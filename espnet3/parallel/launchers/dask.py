"""The driver's loop over pilots: hands out runs, takes outcomes, tells a crash from an exception.

Work ──take──> Run ──channel──> pilot (run_items) ──channel──> Block ──> the caller
  ^                                   │
  ├── tail, when the 50 ms are over ──┤
  └── the items of a worker that died, one by one, in a process that does nothing else
"""

from __future__ import annotations

import itertools
import os
import selectors
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import cloudpickle

from espnet3.parallel.engine import Block, failure_of
from espnet3.parallel.errors import NoWorkersError, ParallelError, WorkerSetupError
from espnet3.parallel.launchers.channel import ChannelClosedError, pickle_parts
from espnet3.parallel.launchers.inquest import Innocent, Inquests
from espnet3.parallel.launchers.pool import Lease, Slot
from espnet3.parallel.launchers.protocol import Done, Hello, Job, SetupReport
from espnet3.parallel.plan import Run, Sizer, Work
from espnet3.parallel.raising import add_note, load_error
from espnet3.parallel.records import ItemFailure, Tally

_JOB_IDS = itertools.count(1)
_DEADLY = 2  # workers one item may take with it
_AHEAD = 48 << 10  # bytes of a run sent to a busy worker: must fit in the socket's buffer (see _send)
_TICK = 0.2  # seconds between looks at a cluster that has no workers
_SETUP_DEATHS = 3  # workers in a row that may die while they build the env
_UNREACHED = 0.5  # seconds without a slot until it is asked whether workers cannot reach us


class PilotRun:
    """One job on one pool.

    Args:
        pool: The client's slots.
        work: The items.
        job: What the slots run.
        start_timeout: Seconds without any worker before giving up.
        may_take: Asked before a run is handed out; False holds new work back (a slow consumer).
        explain: Says how a process ended, or why none comes, where the cluster knows.
        fall_back: Called while no worker has connected;
            returns the pool to use in place of this one, or None to keep waiting.
        waiting: Says what keeps the workers that have not come.
        innocent: As for `Inquests`.
    """

    def __init__(
        self,
        pool: Any,
        work: Work,
        job: Job,
        start_timeout: float,
        may_take: Callable[[], bool] = lambda: True,
        explain: Callable[[int | None], str | None] = lambda pid: None,
        fall_back: Callable[[], Any] = lambda: None,
        waiting: Callable[[], str] = lambda: "",
        innocent: Innocent = lambda hello: False,
    ) -> None:
        self.tally = Tally(slots=0)
        self._pool = pool
        self._work = work
        self._job = job
        self._id = next(_JOB_IDS)
        self._blob = cloudpickle.dumps(job)
        self._timeout = start_timeout
        self._may_take = may_take
        self._explain = explain
        self._fall_back = fall_back
        self._waiting = waiting
        self._inquests = Inquests(innocent)
        self._selector = selectors.DefaultSelector()
        self._ready: dict[Slot, None] = {}
        self._quarantined: set[tuple[str, int]] = set()
        self._dead: set[tuple[str, int]] = set()
        self._sizer = Sizer(lambda: len(self._ready))
        self._prefetch = True
        self._flying = 0
        self._fell_back = self._asked = False
        self._setup_deaths = 0
        self._draining: tuple[str, int] | None = None
        self._out: list[tuple[Run, Block]] = []

    def __iter__(self) -> Generator[tuple[Run, Block], None, None]:
        """Yield each run with its outcomes, as they come in; a block's `error` is the last thing.

        Raises:
            WorkerSetupError: The env could not be built on a worker.
            NoWorkersError: No worker came within `start_timeout`, or none is left.
        """
        self._lease = self._open_lease()
        try:
            quiet_since = time.monotonic()
            while self._flying or self._inquests or not self._work.empty:
                events = self._selector.select(_TICK)
                if self._ready:
                    quiet_since = time.monotonic()
                else:
                    self._check_patience(time.monotonic() - quiet_since)
                for key, _ in events:
                    if key.fileobj is self._lease:
                        self._welcome()
                    elif isinstance(key.fileobj, Slot):
                        self._read(key.fileobj)
                        while key.fileobj in self._lease.slots and key.fileobj.channel.buffered():
                            self._read(key.fileobj)
                self._judge()
                self._fill_all()
                while self._out:
                    out, self._out = self._out, []
                    yield from out
                    self._fill_all()
            self._work.raise_broken()
        finally:
            self._selector.close()
            self._close_lease()

    # --- workers come and go ---

    def _open_lease(self) -> Lease:
        lease: Lease = self._pool.lease()
        self._selector.register(lease, selectors.EVENT_READ)
        lease.wake()
        return lease

    def _close_lease(self) -> None:
        for slot in self._lease.slots:
            try:
                slot.channel.send(("end", self._id))
            except ChannelClosedError:  # the next job that takes this slot finds out
                continue
        self._lease.close()

    def _welcome(self) -> None:
        for slot in self._lease.collect():
            self._selector.register(slot, selectors.EVENT_READ)
            try:
                slot.channel.send(("job", self._id, self._blob, self._job.setup_timeout, _path()))
            except ChannelClosedError:
                self._lost(slot)

    def _check_patience(self, waited: float) -> None:
        """Deal with having no worker that is ready, for `waited` seconds now."""
        reason = self._explain(None)
        if reason is not None:
            raise NoWorkersError(f"no worker is left and none can be started: {reason}")
        if self._lease.slots:  # busy with an item of an earlier job, or building the env
            return
        if not self._asked:  # another job holds every slot
            self._asked = True
            self._lease.ask_for_more()
        if waited > self._timeout:
            raise NoWorkersError(
                f"no worker connected within start_timeout = {self._timeout:g} s; "
                f"look at the workers' logs, or raise it in the `parallel` block\n{self._waiting()}".rstrip()
            )
        if waited > _UNREACHED and not self._pool.met and not self._fell_back:
            other = self._fall_back()
            if other is not None:
                self._fell_back = True
                self._selector.unregister(self._lease)
                self._close_lease()
                self._pool = other
                self._lease = self._open_lease()

    def _process_lost(self, slot: Slot) -> None:
        """Drop a slot and, as they died together, all others of its process."""
        process = slot.hello.process
        building = slot not in self._ready and slot in self._lease.slots and slot.hello.pid
        if building and not self._inquests.innocent(slot.hello):
            self._setup_deaths += 1
        self._lost(slot)
        if slot.hello.pid:
            for other in [s for s in self._lease.slots if s.hello.process == process]:
                self._lost(other)
        if self._setup_deaths >= _SETUP_DEATHS and not self._ready:
            how = self._how_it_ended(slot.hello.pid)
            raise WorkerSetupError(
                f"the env could not be built: {self._setup_deaths} worker processes in a row ended while "
                f"they built it; the last one, of worker {slot.hello.worker}, {how}. Look for a crash in "
                "build_env_local or setup_fn, or for memory it has not got"
            )

    def _lost(self, slot: Slot) -> None:
        self._selector.unregister(slot)
        self._ready.pop(slot, None)
        process = slot.hello.process
        self._quarantined.discard(process)
        if self._draining == process:
            self._draining = None
        runs = list(slot.flying)
        self._flying -= len(runs)
        self._lease.lost(slot)
        if runs and (process not in self._dead or not slot.hello.pid):
            self._dead.add(process)
            self.tally.deaths += 1
        for run in runs[1:]:  # not begun: nobody's fault
            self._return(run)
        if runs:
            self._inquests.begin(runs[0], slot.hello)
            self._judge()

    def _judge(self) -> None:
        """Deal with runs whose worker died, once it is known why: its item, or the end of its job."""
        for run, hello, free in self._inquests.verdicts():
            self._return(run) if free else self._blame(run, hello)

    def _return(self, run: Run) -> None:
        """Give a run back that has done no harm."""
        (self._work.suspects.append if run.deaths else self._work.put_back)(run)

    def _blame(self, run: Run, hello: Hello) -> None:
        deaths = run.deaths + 1
        if len(run.items) > 1 or deaths < _DEADLY:
            self._work.put_back_alone(run, deaths)
            return
        how = self._how_it_ended(hello.pid)
        failure = ItemFailure(
            index=run.items[0],
            error_type="WorkerDied",
            message=f"its worker process {how}; this was the only item there, and the {deaths}. worker "
            "lost with it",
            traceback="",
            attempts=deaths,
            worker=hello.worker,
            cause="poison",
        )
        self._finish(run, failure)

    def _how_it_ended(self, pid: int) -> str:
        """Say how a process ended; the cluster may hear of it a moment after its socket closed."""
        patience = time.monotonic() + 1.0
        while (how := self._explain(pid)) is None and pid and time.monotonic() < patience:
            time.sleep(0.005)
        return how or "ended"

    def _finish(self, run: Run, failure: ItemFailure, error: BaseException | None = None) -> None:
        if self._job.policy.on_error == "raise":
            self._out.append((run, Block(error=error or RuntimeError(failure.message), stop=failure)))
        else:
            self._out.append((run, Block(values=[failure], failed=[0])))

    # --- messages up ---

    def _read(self, slot: Slot) -> None:
        if slot not in self._lease.slots:  # lost while handling an earlier event of the same round
            return
        try:
            message = slot.channel.recv()
        except (ChannelClosedError, OSError):
            self._process_lost(slot)
            return
        except Exception as error:  # a result that cannot be loaded here; its frame was read whole
            self._unreadable(slot, error)
            return
        if message[1] != self._id:  # from a job that is over
            return
        if message[0] == "ready":
            self._setup_deaths = 0
            slot.ready = True
            self._ready[slot] = None
            self.tally.slots = max(self.tally.slots, len(self._ready))
        elif message[0] == "bye":  # its worker ends; what it was sent ahead has not begun
            for run in slot.flying:
                self._return(run)
            self._flying -= len(slot.flying)
            slot.flying.clear()
            self._lost(slot)
        elif message[0] == "setup":
            raise setup_error(message[2])
        else:
            self._done(slot, message[2], message[3])

    def _done(self, slot: Slot, done: Done, values: list[Any]) -> None:
        run = slot.flying.popleft()
        self._flying -= 1
        self._quarantined.discard(slot.hello.process)
        n = len(values)
        self.tally.busy += done.seconds
        block = Block(values, done.failed, done.retries, done.seconds, load_error(done.error), done.stop)
        if done.stop is not None and block.error is None:
            block.error = RuntimeError(f"{done.stop.error_type}: {done.stop.message}")
        if n < len(run.items) and block.error is None:
            tail = Run(run.start + n, run.items[n:])
            run = Run(run.start, run.items[:n], n_bytes=run.n_bytes)
            self._work.put_back(tail)
        if n:
            self._sizer.seen(self._work.units(run), n, done.seconds, max(run.n_bytes, slot.channel.received))
        self._out.append((run, block))

    def _unreadable(self, slot: Slot, error: Exception) -> None:
        run = slot.flying.popleft()
        self._flying -= 1
        self._quarantined.discard(slot.hello.process)
        if len(run.items) > 1:
            self._work.put_back_alone(run, run.deaths)
            return
        failure = failure_of(error, run.items[0], 1, slot.hello.worker, cause="result")
        self._finish(run, failure, error)

    # --- runs down ---

    def _by_value(self, run: Run) -> bytes:
        try:
            return cloudpickle.dumps(run.items, 5)  # type: ignore[no-any-return]  # cloudpickle is untyped
        except Exception as error:
            position, item = _first_unpicklable(run)
            add_note(error, f"item {position} of the data cannot be sent to a worker: {item!r:.200}")
            raise

    def _fill_all(self) -> None:
        for slot in list(self._ready):
            if slot in self._ready and not self._fill(slot):
                return

    def _fill(self, slot: Slot) -> bool:
        """Give a slot what it may hold; False if there is nothing to give to anyone."""
        process = slot.hello.process
        if self._work.suspects and process not in self._quarantined:
            if not any(other.flying for other in self._ready if other.hello.process == process):
                self._draining = None
                self._quarantined.add(process)
                self._send(slot, self._work.suspects.popleft())
                return True
            if self._draining in (None, process):  # no more for its other threads until they are idle
                self._draining = process
                return True
        left = self._work.left
        window = self._sizer.window(left) if self._prefetch else 1
        while len(slot.flying) < window and process not in self._quarantined:
            if not self._may_take():
                return False
            units, most = self._sizer.next(left)
            run = self._work.take(units, self._work.cap(most, len(self._ready)))
            if run is None:
                return bool(self._work.suspects)
            if not self._send(slot, run):
                break
        return True

    def _send(self, slot: Slot, run: Run) -> bool:
        """Send a run; False if it went back to the work.

        A busy worker does not read, and may itself be about to wait for us: what it is sent
        ahead must fit in the socket's buffer, or both would wait for ever.
        """
        # a list may hold instances of the script's own classes, which travel by value
        items = run.items if isinstance(run.items, range) else self._by_value(run)
        positions = self._work.positions(run) if self._job.as_lines else None
        parts, buffers = pickle_parts(("run", self._id, items, positions))
        run.n_bytes = parts.size + sum(b.raw().nbytes for b in buffers)
        if slot.flying and run.n_bytes > _AHEAD:
            self._prefetch = False
            self._work.put_back(run)
            return False
        slot.flying.append(run)
        self._flying += 1
        try:
            slot.channel.send_parts(parts, buffers)
        except ChannelClosedError:
            # it has died since; of its runs the first was begun, unless this one is the first
            if len(slot.flying) == 1:
                slot.flying.clear()
                self._flying -= 1
                (self._work.suspects.append if run.deaths else self._work.put_back)(run)
            self._lost(slot)
            return False
        return True


def _path() -> list[str]:
    """Return the caller's `sys.path` as it is now: a notebook may have added to it since the workers began."""
    return [os.path.abspath(entry) for entry in sys.path]


def _first_unpicklable(run: Run) -> Any:
    for position, item in enumerate(run.items, run.start):
        try:
            cloudpickle.dumps(item)
        except Exception:  # user classes may raise anything while being pickled
            return position, item
    return run.start, run.items[0]


def setup_error(report: SetupReport) -> ParallelError:
    """Make the driver's exception of a worker's failed setup, keeping our own kinds."""
    error = load_error(report.error)
    if isinstance(error, ParallelError):
        ours: ParallelError = type(error)(report.message)
        ours.__cause__ = error.__cause__
        return ours
    wrapped = WorkerSetupError(report.message)
    wrapped.__cause__ = error
    return wrapped

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
import socket
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.engine.exceptions import ANYTHING, load_error
from espnet3.parallel.engine.failures import failure_of
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.engine.work import Chunk, Work
from espnet3.parallel.errors import ConfigError, NoWorkersError, WorkerSetupError
from espnet3.parallel.pilots.abandon import kill_overdue, overdue, part
from espnet3.parallel.pilots.channel import ChannelClosedError
from espnet3.parallel.pilots.feeding import Feeder
from espnet3.parallel.pilots.losses import Losses
from espnet3.parallel.pilots.payload import caller_path
from espnet3.parallel.pilots.pending_losses import Innocent, PendingLosses
from espnet3.parallel.pilots.pool import Lease
from espnet3.parallel.pilots.protocol import Done, Job, pack, setup_error
from espnet3.parallel.pilots.slot import Slot
from espnet3.parallel.records import ItemFailure, ProcessEnd, Tally

_JOB_IDS = itertools.count(1)
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
        end_of: Returns how a process ended, once its cluster knows.
        no_more: Returns why workers cannot be replaced, once none is left to hope for.
        fall_back: Called while no worker has connected;
            returns the pool to use in place of this one, or None to keep waiting.
        waiting: Says what keeps the workers that have not come.
        innocent: As for `PendingLosses`.
        kill: Kills a worker process, which is then replaced; None where the workers are not ours.
        shared: The client goes on after this job: what the job leaves unfinished must not stay in it.
    """

    def __init__(
        self,
        pool: Any,
        work: Work,
        job: Job,
        start_timeout: float,
        may_take: Callable[[], bool] = lambda: True,
        end_of: Callable[[int], ProcessEnd | None] = lambda pid: None,
        no_more: Callable[[], str | None] = lambda: None,
        fall_back: Callable[[], Any] = lambda: None,
        waiting: Callable[[], str] = lambda: "",
        innocent: Innocent = lambda hello: False,
        kill: Callable[[int], None] | None = None,
        shared: bool = False,
    ) -> None:
        self.tally = Tally(slots=0)
        self._pool = pool
        self._work = work
        self._job = job
        self._id = next(_JOB_IDS)
        self._blob = pack(job)
        self._timeout = start_timeout
        self._end_of = end_of
        self._no_more = no_more
        self._fall_back = fall_back
        self._waiting = waiting
        self._pending = PendingLosses(innocent)
        self._kill = kill
        self._shared = shared
        self._losses = Losses(self._id, work, job.policy, self._how_it_ended, self._finish)
        self._looked = 0.0
        self._selector = selectors.DefaultSelector()
        self._feeder = Feeder(self._id, work, may_take, job.as_lines)
        self._dead: set[tuple[str, int]] = set()
        self._fell_back = self._asked = False
        self._setup_deaths = 0
        self._out: list[tuple[Chunk, Block]] = []

    def __iter__(self) -> Generator[tuple[Chunk, Block], None, None]:
        """Yield each run with its outcomes, as they come in; a block's `error` is the last thing.

        Raises:
            WorkerSetupError: The env could not be built on a worker.
            NoWorkersError: No worker came within `start_timeout`, or none is left.
        """
        self._lease = self._open_lease()
        try:
            quiet_since = time.monotonic()
            while self._feeder.flying or self._pending or not self._work.empty:
                events = self._selector.select(_TICK)
                if self._feeder.ready:
                    quiet_since = time.monotonic()
                else:
                    self._check_patience(time.monotonic() - quiet_since)
                self._listen(key.fileobj for key, _ in events)
                self._judge()
                if time.monotonic() - self._looked > _TICK:
                    self._look_around()
                    self._looked = time.monotonic()
                self._feeder.fill_all()
                while self._out:
                    out, self._out = self._out, []
                    yield from out
                    self._feeder.fill_all()
            self._work.raise_broken()
        except BaseException:  # GeneratorExit too: whoever asked wants no more
            if self._shared and self._kill is not None:
                self._say_end()
                part(self._lease, self._id, self._selector, self._kill)
            raise
        finally:
            self._selector.close()
            self._close_lease()

    def _listen(self, readable: Iterable[Any]) -> None:
        for source in readable:
            if source is self._lease:
                self._welcome()
                continue
            self._read(source)
            while source in self._lease.slots and source.channel.buffered():
                self._read(source)

    # --- workers come and go ---

    def _open_lease(self) -> Lease:
        lease: Lease = self._pool.lease()
        self._selector.register(lease, selectors.EVENT_READ)
        lease.wake()
        return lease

    def _close_lease(self) -> None:
        self._say_end()
        self._lease.close()

    def _say_end(self) -> None:
        for slot in self._lease.slots:
            try:
                slot.channel.send(("end", self._id))
            except ChannelClosedError:  # the next job that takes this slot finds out
                continue

    def _welcome(self) -> None:
        for slot in self._lease.collect():
            if self._job.policy.item_timeout is not None and slot.hello.process == (
                socket.gethostname(),
                os.getpid(),
            ):
                raise ConfigError(
                    "item_timeout kills the worker of an item that takes too long, and these workers are threads "
                    "of this process; use worker processes (leave out `processes: false`)"
                )
            self._selector.register(slot, selectors.EVENT_READ)
            try:
                slot.channel.send(("job", self._id, self._blob, self._job.setup_timeout, caller_path()))
            except ChannelClosedError:
                self._drop(slot)

    def _check_patience(self, waited: float) -> None:
        """Deal with having no worker that is ready, for `waited` seconds now."""
        reason = self._no_more()
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
        process, pid = slot.hello.process, slot.hello.pid
        building = pid and not slot.ready and (slot.mark is None or slot.mark.in_setup(self._id))
        self._setup_deaths += bool(building and not self._pending.innocent(slot.hello))
        lost = [s for s in self._lease.slots if s is slot or (pid and s.hello.process == process)]
        alone = not self._lease.shared(process)
        for each in lost:
            self._drop(each)
        if any(s.flying for s in lost) and (process not in self._dead or not pid):
            self._dead.add(process)
            self.tally.deaths += 1
        if pid and self._kill is not None and self._end_of(pid) is None:
            self._kill(pid)  # it may live on without its channel, and would never be replaced
        if any(s.flying for s in lost):
            self._pending.add(lost, alone)
            self._judge()
        if self._setup_deaths >= _SETUP_DEATHS and not self._feeder.ready:
            raise WorkerSetupError(
                f"the env could not be built: {self._setup_deaths} worker processes in a row ended while "
                f"they built it; the last one, of worker {slot.hello.worker}, {self._how_it_ended(pid)}. "
                "Look for a crash in build_env_local or setup_fn, or for memory it has not got"
            )

    def _drop(self, slot: Slot) -> None:
        self._selector.unregister(slot)
        self._feeder.forget(slot)
        self._lease.lost(slot)

    def _judge(self) -> None:
        """Deal with runs whose worker died, once it is known why: its item, or the end of its job."""
        for slots, alone, free in self._pending.decided():
            if free:
                self._losses.give_back(slots)
            else:
                self._losses.settle(slots, alone)

    def _look_around(self) -> None:
        """Find the workers that do not say themselves that they are gone, or must go."""
        for slot in list(self._lease.slots):
            if slot not in self._lease.slots or not slot.hello.pid:
                continue
            if self._end_of(slot.hello.pid) is not None and not slot.channel.readable():
                self._process_lost(slot)  # something it started holds its sockets open
            elif (late := overdue(slot, self._id, self._job.policy.item_timeout)) is not None:
                slot.late = late
                kill_overdue(slot, self._kill)

    def _how_it_ended(self, pid: int) -> ProcessEnd:
        """Return how a process ended; its cluster may hear of it a moment after its socket closed."""
        patience = time.monotonic() + 1.0
        while (
            (end := self._end_of(pid)) is None
            and pid
            and self._kill is not None
            and time.monotonic() < patience
        ):
            time.sleep(0.005)
        return end or ProcessEnd()

    def _finish(
        self,
        chunk: Chunk,
        failure: ItemFailure,
        loss: Loss | None = None,
        error: BaseException | None = None,
    ) -> None:
        if self._job.policy.on_error == "raise":
            kind = TimeoutError if failure.cause == "timeout" else RuntimeError
            block = Block(error=error or kind(failure.message), stop=failure)
        else:
            block = Block(values=[failure], failed=[0], loss=loss)
        block.retries = max(0, chunk.late - (failure.cause == "timeout"))
        self._out.append((chunk, block))

    # --- messages up ---

    def _read(self, slot: Slot) -> None:
        if slot not in self._lease.slots:  # lost while handling an earlier event of the same round
            return
        try:
            message = slot.channel.recv()
        except (ChannelClosedError, OSError):
            self._process_lost(slot)
            return
        except ANYTHING as error:  # a result that cannot be loaded here; its frame was read whole
            self._unreadable(slot, error)
            return
        if message[1] != self._id:  # from a job that is over
            return
        if message[0] == "ready":
            self._setup_deaths = 0
            slot.ready = True
            self._feeder.ready[slot] = None
            self.tally.slots = max(self.tally.slots, len(self._feeder.ready))
        elif message[0] == "bye":  # its worker ends; what it was sent ahead has not begun
            self._drop(slot)
            self._losses.give_back([slot])
        elif message[0] == "setup":
            raise setup_error(message[2])
        elif message[0] == "late":
            slot.late = message[2]
            if not slot.hello.pid:  # a task's answer; any other worker is killing itself now
                self._losses.too_late(self._feeder.came_back(slot), slot)
                slot.late = None
        else:
            self._done(slot, Done(*message[2]), message[3])

    def _done(self, slot: Slot, done: Done, values: list[Any]) -> None:
        chunk = self._feeder.came_back(slot)
        self._losses.progress()
        slot.late = None
        n = len(values)
        self.tally.busy += done.seconds
        retries = done.retries + chunk.late
        block = Block(values, done.failed, retries, done.seconds, load_error(done.error), done.stop)
        if done.stop is not None and block.error is None:
            block.error = RuntimeError(f"{done.stop.error_type}: {done.stop.message}")
        if n < len(chunk.items) and block.error is None:
            self._work.put_back(chunk.part(n))
            chunk = Chunk(chunk.start, chunk.items[:n], chunk.suspect, n_bytes=chunk.n_bytes)
        if n and not chunk.suspect:
            self._feeder.sizer.seen(
                self._work.units(chunk), n, done.seconds, max(chunk.n_bytes, slot.channel.received)
            )
        self._out.append((chunk, block))

    def _unreadable(self, slot: Slot, error: BaseException) -> None:
        chunk = self._feeder.came_back(slot)
        if len(chunk.items) > 1:
            self._work.put_back_alone(chunk, chunk.deaths)
            return
        failure = failure_of(error, chunk.items[0], 1, slot.hello.worker, cause="result")
        self._finish(chunk, failure, error=error)

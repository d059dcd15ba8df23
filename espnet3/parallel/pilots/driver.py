"""The driver's loop over pilots: hands out chunks, takes outcomes, distinguishes a crash from an exception.

Work ──take──> Chunk ──channel──> pilot (run_items) ──channel──> Block ──> the caller
  ^                                   │
  ├── tail, when the 50 ms are over ──┤
  └── the items of a worker that died, one by one, in a process that does nothing else
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.blame import Loss
from espnet3.parallel.engine.exceptions import ANYTHING, failure_of, load_error
from espnet3.parallel.engine.loop import Block
from espnet3.parallel.engine.watch import AwakeClock, Late
from espnet3.parallel.engine.work import BUDGET, SLACK, Chunk, Sizer, Work
from espnet3.parallel.errors import NoWorkersError, say_where
from espnet3.parallel.messages import brief
from espnet3.parallel.pilots.channel import Message
from espnet3.parallel.pilots.log_records import Inlet, hearing_here
from espnet3.parallel.pilots.losses import Losses, SignsOfLife, find_late_item
from espnet3.parallel.pilots.pool import ChangedWorkersError, RunSlots, Slot, SlotClaim
from espnet3.parallel.pilots.protocol import Report, RunSpec, pack, setup_error
from espnet3.parallel.records import THIS_PROCESS, ItemFailure, ProcessEnd, Tally
from espnet3.parallel.surroundings import search_path

logger = logging.getLogger(__name__)

_RUN_IDS = itertools.count(1)
_TICK = 0.2  # seconds between looks at a cluster that has no workers
_FEW = 64  # items that one slot may well have done before all others have heard of the run
_FIRST = 0.003  # seconds that it has for its next word
_FINISHING = 0.1  # seconds that an item may still take when its run is given up
_UNREACHED = 0.5  # seconds without a slot after which workers may be unable to reach us
_AHEAD = 48 << 10  # bytes of chunks sent to a busy worker: they must fit in the socket's buffer (see _send)


@dataclass(eq=False)
class PilotRun:
    """One run over the slots of one cluster.

    `config`: of the cluster, for the patience with workers. `may_take`: False holds new work back (a slow consumer).
    `shared`: the client outlives this run, whose unfinished work is cancelled at its end. `tally` may be read while the
    run goes on.
    """

    slots: RunSlots
    work: Work
    spec: RunSpec
    config: ParallelConfig
    may_take: Callable[[], bool] = lambda: True
    shared: bool = False
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.tally.slots = self.tally.workers = 0
        self.number = next(_RUN_IDS)
        self._blob = pack(self.spec)
        self._signs = SignsOfLife(self.config.frozen_timeout, self.slots.last_heard)
        self._losses = Losses(self)
        self._clock, self._looked = AwakeClock(), 0.0
        self._selector = selectors.DefaultSelector()
        self._feeder = Feeder(self)
        self._dead: set[tuple[str, int]] = set()
        self._hearing = hearing_here()
        self._inlet = Inlet()
        self._answered: set[str] = set()
        self._seen: set[tuple[str, int]] = set()  # processes that became ready
        self._out: list[tuple[Chunk, Block]] = []
        self._alone, self._until = False, 0.0  # one slot alone has heard of the run, and until when it may

    def __iter__(self) -> Generator[tuple[Chunk, Block], None, None]:
        """Yield each chunk with its outcomes, as they come in; a block's `error` is the last thing."""
        opened_in = os.getpid()
        self._claim = SlotClaim(self.slots.pool)
        self._selector.register(self._claim, selectors.EVENT_READ)
        self._claim.wake()
        self.work.wake = self._claim.wake
        try:
            self._call_first()
            quiet_since = self._clock.look(0.0)
            while self._feeder.flying or self._losses.undecided or not self.work.empty:
                self.slots.check()
                tick = _FIRST if self._alone and self._claim.slots else _TICK
                events = self._selector.select(self._losses.next_look(tick))
                now = self._clock.look(_TICK)
                if self._feeder.ready or self._may_wait(now - quiet_since):
                    quiet_since = now
                self._listen(key.fileobj for key, _ in events)
                if self._alone and self._claim.slots and self._takes_long():
                    self._alone = False
                    self.slots.grow()
                    self._welcome(True)
                self._losses.settle()
                if not self._feeder.ready:
                    self._losses.check_setup()
                if now - self._looked > _TICK:
                    self._look_around(now)
                    self._looked = now
                self._feeder.fill_all()
                while self._out:
                    out, self._out = self._out, []
                    yield from out
                    self._feeder.fill_all()
            self.work.raise_broken()
        except BaseException:  # GeneratorExit too: the caller wants no more
            if self.shared and os.getpid() == opened_in:
                self._send_end()
                self._abandon()
            raise
        finally:
            # a forked child's copy of this run ends without a word to the workers
            if os.getpid() == opened_in:
                self._selector.close()
                self._close_claim()
                self._inlet.say_left_out()

    def _listen(self, readable: Iterable[Any]) -> None:
        for source in readable:
            if source is self._claim:
                self._welcome()
                continue
            self._read(source)
            while source in self._claim.slots and source.channel.buffered():
                self._read(source)

    def _close_claim(self) -> None:
        self._send_end()
        for slot in list(self._feeder.ready):
            self._feeder.leave(slot)
        self.tally.slot_seconds = self._feeder.present
        self._claim.close()

    def _send_end(self) -> None:
        for slot in self._claim.slots:
            with suppress(OSError):  # the next run that takes this slot finds out
                slot.channel.send(("end", self.number))

    def _abandon(self) -> None:
        # A client goes on, and this run's slots have been sent its end. An item (or an env) that takes longer than a
        # moment is not waited for: its worker is killed and replaced, unless another run has an item in it.
        until = time.monotonic() + _FINISHING
        while (busy := [s for s in self._claim.slots if self._is_busy(s)]) and time.monotonic() < until:
            for key, _ in self._selector.select(_FINISHING / 20):
                if isinstance(key.fileobj, Slot):
                    self._read_on(key.fileobj)
        for slot in busy:
            if slot.hello.pid and slot in self._claim.slots and not self._claim.shared(slot.hello.process):
                self.slots.kill_worker(*slot.hello.process)
                self._claim.lost(slot)

    def _is_busy(self, slot: Slot) -> bool:
        return not slot.ready or (slot.mark is not None and slot.mark.is_in(self.number))

    def _read_on(self, slot: Slot) -> None:
        try:
            message = slot.channel.recv()
        except OSError:
            self._drop(slot)
        except ANYTHING:  # a result that cannot be loaded here, and is not wanted
            pass
        else:  # any message of the run means that the env is built
            slot.ready = slot.ready or message[1] == self.number

    def _call_first(self) -> None:
        self._alone = not self._claim.is_first and self.work.total is not None and self.work.total <= _FEW
        if not self._alone:
            self.slots.grow()

    def _takes_long(self) -> bool:
        return self._feeder.sizer.seconds(self.work.left) > _FIRST or time.perf_counter() > self._until

    def _welcome(self, others: bool = False) -> None:
        fresh = self._claim.collect(1 - len(self._claim.slots) if self._alone else None)
        now = time.perf_counter()
        if fresh:
            self.tally.joined, self._until = self.tally.joined or now, now + _FIRST
        asked = self.slots.stays and not self._claim.is_first and (others or self.tally.ready is None)
        path = search_path()  # as it is now: a notebook may have added to it since the workers began
        message = ("run", self.number, self._blob, self.spec.setup_timeout, path, self._hearing)
        for slot in fresh:
            self._selector.register(slot, selectors.EVENT_READ)
            try:
                slot.channel.send((*message, asked))
            except OSError:
                self._drop(slot)

    def _may_wait(self, waited: float) -> bool:
        if (given_up := self.slots.given_up()) is not None:
            raise NoWorkersError(f"no worker is left and none can be started: {given_up}")
        if self._claim.slots or self.slots.waits:  # busy, building the env, or in the queue
            return True
        if waited > self.config.start_timeout:
            raise NoWorkersError(
                f"no worker connected within start_timeout = {self.config.start_timeout:g} s; "
                f"look at the workers' logs, or raise it in the `parallel` block\n{self.slots.missing()}".rstrip()
            )
        if waited > _UNREACHED:
            self.slots.fall_back()
        return False

    def _process_lost(self, slot: Slot) -> None:
        process, pid = slot.hello.process, slot.hello.pid
        building = pid and not slot.ready and (slot.mark is None or slot.mark.is_in(self.number))
        # its last slot may have come to this run just as the others of its process were lost
        if building and process not in self._dead:
            self._losses.add_in_setup(slot)
        lost = [s for s in self._claim.slots if s is slot or (pid and s.hello.process == process)]
        alone = not self._claim.shared(process)
        for each in lost:
            self._drop(each)
        if pid and self.slots.end_of(*process) is None:
            self.slots.kill_worker(*process)  # alive without its channel it would never be replaced
        if held := [s for s in lost if s.flying]:
            self._losses.add(held, alone)
            if process not in self._dead or not pid:
                self._dead.add(process)
                self.tally.deaths += 1
                self.tally.went.append((slot.hello.worker, time.time()))
                self._seen.discard(process)

    def _drop(self, slot: Slot) -> None:
        self._selector.unregister(slot)
        self._feeder.forget(slot)
        self._claim.lost(slot)

    def _look_around(self, now: float) -> None:
        for slot in list(self._claim.slots):
            if slot not in self._claim.slots or not slot.hello.pid:
                continue
            if self.slots.end_of(*slot.hello.process) is not None and not slot.channel.readable():
                self._process_lost(slot)  # a process that it started holds its sockets open
            elif (late := find_late_item(slot, self.number, self.spec.policy.item_timeout, now)) is not None:
                slot.late = late
                self.slots.kill_worker(*slot.hello.process)
        for slot, seconds in self._signs.frozen(self._claim.slots):
            host, pid = slot.hello.process
            for_long = f"for {seconds:.0f} s (the limit is frozen_timeout)"
            who = f"worker {slot.hello.worker} (pid {pid} on {host})"
            logger.warning("%s gives no sign of life %s: its items go to others", who, for_long)
            for each in self._claim.slots:
                if each.hello.process == (host, pid):
                    each.end = ProcessEnd(reason=f"gave no sign of life {for_long}")
            self._process_lost(slot)

    def finish(
        self, chunk: Chunk, failure: ItemFailure, error: BaseException | None, loss: Loss | None = None
    ) -> None:
        """Take a chunk of one item that has failed, perhaps by a loss."""
        if self.spec.policy.on_error == "raise":
            block = Block(error=error, stop=failure)
        else:
            block = Block(values=[failure], failed=[0], loss=loss)
        block.retries = max(0, chunk.charges.late - (loss is not None and loss.seconds is not None))
        self._out.append((chunk, block))

    def _read(self, slot: Slot) -> None:
        if slot not in self._claim.slots:  # lost while handling an earlier event of the same round
            return
        try:
            message = slot.channel.recv()
        except OSError:
            self._process_lost(slot)
            return
        except ANYTHING as error:  # a result that cannot be loaded here; its frame was read whole
            chunk = self._feeder.came_back(slot)
            if len(chunk.items) > 1:
                self.work.put_back_alone(chunk)
                return
            failure = failure_of(error, chunk.items[0], 1, slot.hello.worker, cause="result")
            self.finish(chunk, failure, error)
            return
        if message[1] == self.number:  # not from a run that is over
            self._until = time.perf_counter() + _FIRST
            getattr(self, "_on_" + message[0])(slot, *message[2:])

    def _on_log(self, slot: Slot, said: tuple[str, list[dict[str, Any]], int]) -> None:
        self._inlet.take(*said)

    def _on_bye(self, slot: Slot) -> None:  # its worker ends; what it was sent ahead has not begun
        self._drop(slot)
        self._losses.give_back([slot])

    def _on_unread(self, slot: Slot, failure: ItemFailure, raised: bytes | None) -> None:
        chunk = self._feeder.came_back(slot)
        self.not_travelled(chunk, "loaded on a worker", load_error(raised, failure), failure)

    def _on_setup(self, slot: Slot, report: Report) -> None:
        raise setup_error(report)

    def _on_late(self, slot: Slot, late: Late) -> None:
        slot.late = late
        if not slot.hello.pid:  # a task's answer; any other worker is killing itself now
            self._losses.too_late(self._feeder.came_back(slot), slot)
            slot.late = None

    def _on_changed(self, slot: Slot) -> None:
        if self.tally.ready is None:  # what the workers have in common may have changed
            raise ChangedWorkersError
        self._drop(slot)
        self.slots.kill_worker(*slot.hello.process)

    def _on_ready(self, slot: Slot, imports: float = 0.0, env: float = 0.0) -> None:
        self._losses.in_setup = self._losses.rounds = 0
        slot.ready = True
        tally, ready = self.tally, self._feeder.ready
        ready[slot] = time.perf_counter()
        sizer, trip = self._feeder.sizer, slot.channel.trip
        sizer.trip = min(sizer.trip, trip) if len(ready) > 1 else trip
        if tally.ready is None:
            tally.ready = ready[slot]
        tally.import_seconds = max(tally.import_seconds, imports)
        tally.env_seconds = max(tally.env_seconds, env)
        if slot.hello.process not in self._seen:  # a worker's slots share one env
            self._seen.add(slot.hello.process)
            tally.came.append((slot.hello.worker, time.time(), imports, env))
        tally.slots = max(tally.slots, len(ready))
        tally.workers = max(tally.workers, len({each.hello.address for each in ready}))

    def _on_done(self, slot: Slot, block: Block) -> None:
        chunk = self._feeder.came_back(slot)
        self._losses.in_vain = 0
        slot.late = None
        n, block.worker = len(block.values), slot.hello.worker
        self.tally.busy_seconds += block.seconds
        if not self.tally.warm:
            self._answered.add(slot.hello.address)
            # every worker has answered: those that are connected and, of this machine, those to come
            expected = self.tally.asked if self.slots.starts_at_once else 0
            here = {each.hello.address for each in self._claim.slots}
            self.tally.warm = len(self._answered) >= expected and self._answered >= here
        block.retries += chunk.charges.late
        if n < len(chunk.items) and block.error is None:
            self.work.put_back(chunk.part(n))
            chunk = replace(chunk, items=chunk.items[:n])
        if n and not chunk.charges.suspect:
            n_bytes = max(chunk.n_bytes, slot.channel.received)
            self._feeder.sizer.seen(self.work.units(chunk), n, block.seconds, n_bytes)
        self._out.append((chunk, block))

    def not_travelled(
        self, chunk: Chunk, where: str, error: BaseException | None, failure: ItemFailure
    ) -> None:
        """Settle a chunk that cannot be pickled, or loaded: it goes again in halves, down to the one item at fault."""
        if len(chunk.items) > 1:
            half = len(chunk.items) // 2
            self.work.put_back(chunk.part(0, half))
            self.work.put_back(chunk.part(half))
            return
        index, position = chunk.items[0], self.work.positions(chunk)[0]
        note = f"item {position} of the data cannot be {where}: {brief(index)}"
        assert error is not None
        say_where(error, note)
        failure = replace(failure, index=index, message=f"{failure.message}\n{note}")
        self.finish(chunk, failure, error)


class Feeder:
    """Hands a run's chunks to its slots."""

    def __init__(self, run: PilotRun) -> None:
        self._run = run
        self.work = run.work
        self.ready: dict[Slot, float] = {}  # slots that have the run's env, in their order, and since when
        self.present = 0.0  # seconds that slots were ready which are not any more
        self.flying = 0  # chunks that are out
        self.sizer = Sizer(lambda: len(self.ready), keeps=run.spec.as_lines)
        self._quarantined: set[tuple[str, int]] = set()
        self._draining: tuple[str, int] | None = None

    def leave(self, slot: Slot) -> None:
        """Hand out nothing more to a slot; what it holds may still come back."""
        now = time.perf_counter()
        self.present += now - self.ready.pop(slot, now)

    def came_back(self, slot: Slot) -> Chunk:
        """Take the answered chunk off a slot."""
        self.flying -= 1
        self._quarantined.discard(slot.hello.process)
        return slot.flying.popleft()

    def forget(self, slot: Slot) -> None:
        """Hand out nothing more to a lost slot, and count its chunks as lost."""
        self.flying -= len(slot.flying)
        self.leave(slot)
        process = slot.hello.process
        self._quarantined.discard(process)
        if self._draining == process:
            self._draining = None

    def fill_all(self) -> None:
        """Give every slot all that it may hold; a busy one gets nothing that an idle one could begin."""
        for ahead in (False, True):
            for slot in [slot for slot in self.ready if ahead or not slot.flying]:
                if slot in self.ready and not self._fill(slot, ahead):
                    return
            if self.sizer.window(self.work.left) == 1:
                return

    def _fill(self, slot: Slot, ahead: bool) -> bool:
        process = slot.hello.process
        if self.work.suspects and process not in self._quarantined:
            if not any(other.flying for other in self.ready if other.hello.process == process):
                self._draining = None
                self._quarantined.add(process)
                self._send(slot, self.work.suspects.popleft(), BUDGET)
                return True
            if self._draining in (None, process):  # no more for its other threads until they are idle
                self._draining = process
                return True
        left = self.work.left
        window = self.sizer.window(left)
        while len(slot.flying) < (window if ahead else 1) and process not in self._quarantined:
            # chunks that came back go first: an ordered stream may wait for nothing else
            if not (self.work.returned or self._run.may_take()):
                return False
            units, most, seconds = self.sizer.next(left, window)
            slots = len(self.ready)
            chunk = self.work.take(units, self.work.cap(most, slots * max(2, window)), slots)
            if chunk is None:
                return bool(self.work.suspects)
            if not self._send(slot, chunk, SLACK * seconds):
                break
        return True

    def _send(self, slot: Slot, chunk: Chunk, seconds: float) -> bool:
        # a list may hold instances of the script's own classes, which travel by value
        try:
            items = chunk.items if isinstance(chunk.items, range) else pickling.dumps(chunk.items)
        except ANYTHING as error:
            failure = failure_of(error, None, 1, THIS_PROCESS)
            self._run.not_travelled(chunk, "sent to a worker", error, failure)
            self._quarantined.discard(slot.hello.process)
            return True
        positions = self.work.positions(chunk) if self._run.spec.as_lines else None
        message = Message(
            ("chunk", self._run.number, items, chunk.start, chunk.charges.suspect, positions, seconds)
        )
        chunk.n_bytes = message.size + sum(b.raw().nbytes for b in message.buffers)
        if slot.flying and sum(each.n_bytes for each in [*slot.flying, chunk][1:]) > _AHEAD:
            self.sizer.most_ahead = len(slot.flying) - 1
            self.work.put_back(chunk)
            return False
        try:
            slot.channel.send_message(message)
        except OSError:
            # it has died since; what it said before, and its end, are still to be read
            self.leave(slot)
            self._quarantined.discard(slot.hello.process)
            self.work.put_back(chunk)
            return False
        slot.flying.append(chunk)
        self.flying += 1
        return True

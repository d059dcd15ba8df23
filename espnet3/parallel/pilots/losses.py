"""Decide about the chunks of lost workers: the rules of `engine.blame`, applied to the slots' marks.

A slot's mark says about its chunk:

- nothing begun: all of its items go back;
- items 40 to 47: these were in progress; all others go back;
- without a mark, as the worker was on another host, all of its items may have been in progress.

The decision waits until it is known how the process ended; the driver's loop serves all other workers meanwhile. Where
nobody tells that within a second, the process went with its node, job or pod, and no item is charged. Charges against
items travel in their chunk. Items that take too long and frozen workers are given up here too.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.engine.blame import Charges, Fate, Loss, after_loss, failure_of_item
from espnet3.parallel.engine.exceptions import load_error
from espnet3.parallel.engine.watch import AwakeClock, Late
from espnet3.parallel.engine.work import Chunk
from espnet3.parallel.errors import WorkerSetupError
from espnet3.parallel.pilots.pool import Slot
from espnet3.parallel.pilots.protocol import Hello
from espnet3.parallel.records import ProcessEnd

_IN_VAIN = 3  # workers in a row that may die with nothing begun, before all they held is suspected
_UNHEARD = 1.0  # seconds in which it is heard how a process ended: its socket may close before
_SETUP_DEATHS = 3  # workers in a row that may die while they build the env
_LOOK = 0.01  # seconds between looks while that is about to be known
_EXCUSED = 3  # jobs that may end under the same chunk, or env: after more, it does not fit into one
_GRACE = 1.0  # seconds over item_timeout after which a worker is taken to be unable to kill itself
_LOOKS = 20  # at a worker's signs of life, per frozen_timeout
_LEAST_PAUSE = 0.25  # seconds between two such looks: the driver looks around no more often
_KILLED = ProcessEnd(signal=signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Losses:
    """Decides what becomes of the chunks that lost workers of a run held."""

    run: Any  # a `driver.PilotRun`
    in_vain: int = 0  # workers in a row that died with nothing begun; a chunk's answer sets it to 0
    in_setup: int = 0  # workers in a row that died while they built the env; one that is built sets it to 0
    rounds: int = 0  # as before, of workers that came after the one before had died
    last_in_setup: tuple[Hello, float] | None = None  # and since when
    round_since: float = 0.0
    # slots of a process each, whether that had no item of another run, and since when it is lost
    undecided: list[tuple[list[Slot], bool, float]] = field(default_factory=list)
    excused: Counter[int] = field(default_factory=Counter)  # ends of jobs, by the start of the chunk in hand

    def add(self, slots: list[Slot], alone: bool) -> None:
        """Take the slots of a lost process that held chunks; `alone`: the process had no item of another run."""
        self.undecided.append((slots, alone, time.monotonic()))

    def add_in_setup(self, slot: Slot) -> None:
        """Note a worker that died while it built the env."""
        self.in_setup += 1
        self.last_in_setup = slot.hello, time.monotonic()
        if slot.came > self.round_since:
            self.rounds, self.round_since = self.rounds + 1, time.monotonic()

    def next_look(self, otherwise: float) -> float:
        """Return the seconds until the next look; `otherwise` where no answer is due."""
        due = any(self._is_unheard(slots[0].hello) for slots, _, _ in self.undecided)
        return min(_LOOK, otherwise) if due else otherwise

    def check_setup(self) -> None:
        """Give up after too many deaths during setup, once it is known how the last one ended."""
        if self.in_setup < _SETUP_DEATHS or self.last_in_setup is None:
            return
        hello, since = self.last_in_setup
        end = self.run.slots.end_of(*hello.process) or ProcessEnd()
        if self._is_unheard(hello):
            is_gone = time.monotonic() - since >= _UNHEARD
            self.in_setup -= is_gone
            if not is_gone or self.rounds <= _EXCUSED:  # its job may have been preempted
                return
            end = ProcessEnd(reason="went with its job or node")
        raise WorkerSetupError(
            f"the env could not be built: {max(self.in_setup, self.rounds)} processes in a row ended while they built "
            f"it; the last one, of worker {hello.worker}, {end}. Look for a crash in build_env_local or setup_fn, or "
            "for a lack of memory"
        )

    def settle(self) -> None:
        """Decide about the processes whose end is known now, and those whose end stays unknown."""
        waiting, self.undecided = self.undecided, []
        for slots, alone, since in waiting:
            hello = slots[0].hello
            unheard = self._is_unheard(hello)
            # one that was killed because a call took too long, or froze, needs no other reason
            innocent = unheard and not any(slot.late is not None or slot.end is not None for slot in slots)
            starts = [slot.flying[0].start for slot in slots]
            if unheard and time.monotonic() - since < _UNHEARD:
                self.undecided.append((slots, alone, since))
            elif innocent and all(self.excused[start] < _EXCUSED for start in starts):
                self.excused.update(starts)
                self.give_back(slots)
            else:
                self._settle(slots, alone)

    def _is_unheard(self, hello: Hello) -> bool:
        return bool(hello.pid) and self.run.slots.end_of(*hello.process) is None

    def _settle(self, slots: Sequence[Slot], alone: bool) -> None:
        killed_for_time = any(slot.late is not None for slot in slots)
        inside = {slot: self._inside(slot) for slot in slots}
        begun = [slot for slot in slots if inside[slot] != (0, 0)]
        self.in_vain = 0 if begun else self.in_vain + 1
        for slot in slots:
            chunk, *ahead = slot.flying
            for other in ahead:  # not begun
                self.run.work.put_back(other)
            if slot.late is not None:
                self.too_late(chunk, slot)
            elif killed_for_time:  # it was killed because of another slot's item
                self.run.work.put_back(chunk)
            else:
                where = inside[slot]
                rest = chunk if where is None else self._in_progress(chunk, *where)
                n = len(rest.items)
                end = slot.end or (n == 1 and self.run.slots.end_of(*slot.hello.process)) or ProcessEnd()
                loss = Loss(rest.start, n, end, alone and len(begun) == 1, seen=where is not None)
                self._decide(rest, slot, loss)

    def give_back(self, slots: Sequence[Slot]) -> None:
        """Take back all chunks of slots that ended without an item's fault."""
        for slot in slots:
            for chunk in slot.flying:
                self.run.work.put_back(chunk)
            slot.flying.clear()

    def too_late(self, chunk: Chunk, slot: Slot) -> None:
        """Decide about a chunk with an item that took too long."""
        late = slot.late
        assert late is not None
        rest = self._in_progress(chunk, late.position, late.items)
        end = _KILLED if slot.hello.pid else ProcessEnd()
        why = late.seconds, late.stack, late.error
        loss = Loss(rest.start, len(rest.items), end, True, True, *why)
        self._decide(rest, slot, loss, late.raised)

    def _inside(self, slot: Slot) -> tuple[int, int] | None:
        if slot.mark is None or self.in_vain >= _IN_VAIN:
            return None
        chunk = slot.flying[0]
        return slot.mark.within(self.run.number, chunk.start, chunk.items) or (0, 0)

    def _in_progress(self, chunk: Chunk, at: int, n: int) -> Chunk:
        before = chunk.part(0, at)
        before.charges = Charges()  # it was done and the worker lived on
        self.run.work.put_back(before)
        self.run.work.put_back(chunk.part(at + n))
        return chunk.part(at, at + n)

    def _decide(self, chunk: Chunk, slot: Slot, loss: Loss, raised: bytes | None = None) -> None:
        fate, charges = after_loss(chunk.charges, loss, self.run.spec.policy)
        after = Chunk(chunk.start, chunk.items, charges)
        if fate is Fate.APART:
            self.run.work.put_back_alone(after)
        elif fate is Fate.FAILED:
            failure = failure_of_item(chunk.items[0], loss, charges, self.run.spec.policy, slot.hello.worker)
            self.run.finish(after, failure, load_error(raised, failure), loss)
        else:
            self.run.work.put_back(after)


class SignsOfLife:
    """Notices a worker process that has been frozen for `limit` seconds: by a signal, or with its node.

    A process that lives wakes up every second at least, whatever its items do: also beside one that sleeps, or that
    keeps the interpreter's lock. The processor time and the context switches say so; those of a process on another
    host come with the heartbeats of its node.
    """

    def __init__(self, limit: float | None, last_heard: Callable[[str], Any]) -> None:
        self._limit = limit
        self._last_heard = last_heard
        self._signs: dict[tuple[str, int], tuple[Any, float]] = {}  # the last one, since when
        self._next = 0.0
        self._clock = AwakeClock()

    def frozen(self, slots: set[Slot]) -> list[tuple[Slot, float]]:
        """Return a slot of each process that is frozen, and for how many seconds it has given no sign of life."""
        if self._limit is None or time.monotonic() < self._next:
            return []
        pause = self._limit / _LOOKS
        self._next = time.monotonic() + pause
        now = self._clock.look(max(pause, _LEAST_PAUSE))
        found: list[tuple[Slot, float]] = []
        before, self._signs = self._signs, {}
        for process, slot in {slot.hello.process: slot for slot in slots if slot.hello.pid}.items():
            here = slot.hello.host == socket.gethostname()
            sign = sign_of(slot.hello.pid) if here else self._last_heard(slot.hello.address)
            last, since = before.get(process, (None, now))
            self._signs[process] = (sign, since if sign == last else now)
            if sign == last and now - since > self._limit:
                found.append((slot, now - since))
        return found


def sign_of(pid: int) -> Any:
    """Return what changes every second while a process of this host is not frozen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            times = file.read().rpartition(b")")[2].split()[11:13]
        with open(f"/proc/{pid}/status", "rb") as file:
            return times, [line for line in file if b"ctxt_switches" in line]
    except OSError:  # no descriptor is free; it has ended; only its owner may look
        return time.monotonic()


def find_late_item(slot: Slot, run_id: int, limit: float | None, now: float) -> Late | None:
    """Return the item of a slot that should have been over long ago, if there is one; `now` by the driver's clock.

    A worker kills itself over an item that takes too long, unless the item keeps every other thread from running.
    """
    if limit is None or slot.mark is None or slot.late is not None or not slot.flying:
        return None
    seen = slot.mark.read()
    if (seen.run, seen.start) != (run_id, slot.flying[0].start) or seen.items < 1 or not seen.since:
        return None
    if slot.seen is None or slot.seen[0] != seen:
        slot.seen = seen, now
    seconds = now - slot.seen[1]
    return Late(seen.at, seen.items, seconds) if seconds > limit + _GRACE else None

"""Feed worker slots: chunks of the size that fits now, and suspects to a process that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from espnet3.parallel.engine import pickling
from espnet3.parallel.engine.exceptions import ANYTHING
from espnet3.parallel.engine.work import BUDGET, SLACK, Chunk, Sizer, Work
from espnet3.parallel.pilots.channel import ChannelClosedError, pickle_parts
from espnet3.parallel.pilots.pool import Slot

_AHEAD = 48 << 10  # bytes of chunks sent to a busy worker: they must fit in the socket's buffer (see _send)


@dataclass(eq=False)
class Feeder:
    """Hands a run's chunks to its slots.

    `may_take` is asked before a chunk is handed out; False holds new work back (a slow consumer). `refused` gets a
    chunk whose items cannot be pickled, and why.
    """

    run_id: int
    work: Work
    may_take: Callable[[], bool]
    as_lines: bool
    refused: Callable[[Chunk, BaseException], None]

    def __post_init__(self) -> None:
        self.ready: dict[Slot, float] = {}  # slots that have the run's env, in their order, and since when
        self.present = 0.0  # seconds that slots were ready which are not any more
        self.flying = 0  # chunks that are out
        self.sizer = Sizer(lambda: len(self.ready), keeps=self.as_lines)
        self._quarantined: set[tuple[str, int]] = set()
        self._draining: tuple[str, int] | None = None

    def leave(self, slot: Slot) -> None:
        """Hand out nothing more to a slot; what it holds may still come back."""
        since = self.ready.pop(slot, None)
        if since is not None:
            self.present += time.perf_counter() - since

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
            if not (self.work.returned or self.may_take()):
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
            self.refused(chunk, error)
            self._quarantined.discard(slot.hello.process)
            return True
        positions = self.work.positions(chunk) if self.as_lines else None
        parts, buffers = pickle_parts(
            ("chunk", self.run_id, items, chunk.start, chunk.suspect, positions, seconds)
        )
        chunk.n_bytes = parts.size + sum(b.raw().nbytes for b in buffers)
        if slot.flying and sum(each.n_bytes for each in [*slot.flying, chunk][1:]) > _AHEAD:
            self.sizer.most_ahead = len(slot.flying) - 1
            self.work.put_back(chunk)
            return False
        try:
            slot.channel.send_parts(parts, buffers)
        except ChannelClosedError:
            # it has died since; what it said before, and its end, are still to be read
            self.leave(slot)
            self._quarantined.discard(slot.hello.process)
            self.work.put_back(chunk)
            return False
        slot.flying.append(chunk)
        self.flying += 1
        return True

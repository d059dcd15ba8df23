"""Cutting indices into chunks, and how long the next one is: by time as it is measured, by cost where it is known.

A chunk is a stretch of the dispatch order. Without a cost hint the order is the caller's; with one, the most expensive
items go first. A chunk size is nowhere set: it is cut to what a worker did in 50 ms so far (up to six times that where
there is much to do), capped by the bytes its results took, and gets shorter near the end.
"""

from __future__ import annotations

import heapq
import itertools
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any

from espnet3.parallel.engine.blame import Charges
from espnet3.parallel.engine.loop import KEEP
from espnet3.parallel.messages import brief

BUDGET = 0.05  # seconds of work per chunk: long against a round trip (0.1 ms), short against a wait
SLACK = 1.5  # a chunk may take so many times as long as planned; then its tail goes to a free slot
_LONGEST = 0.3  # seconds of work per chunk where there is much to do: fewer messages, for the same balance
_QUICK = 0.005  # seconds per item up to which chunks may be that long: a dead worker's chunk is done again
_SHARE = 5  # a chunk longer than the budget is at most this part (a fifth) of all that its slot has to do
# chunks that a slot's share of the rest is cut into, where speeds vary and where they do not
_CUTS = (4.0, 2.0)
_VARIES = 0.25  # how far off, on average, chunks are where speeds vary
GROW = 8  # a chunk may be this many times as long as the last one
MAX_BYTES = 8 << 20  # of results per chunk
MAX_ITEMS = 1 << 16  # per chunk; the list of its results is memory of the driver and of the worker
_FAR = 0.1  # of a chunk's seconds, or an item's: a slot is far if a round trip takes more
_FLOOR = 0.0005  # seconds: chunks near the end get no shorter than this, the trip would cost more
_WARM = 8.0  # an average over so many chunks
_PATIENCE = 0.01  # seconds a chunk waits for a slow iterator before it goes with fewer items
_UNCHANGING = (tuple, range)
_NONE = Charges()
_LEAST_AT_RISK = 64  # items: fewer are repeated sooner than sent one by one


@dataclass(slots=True)
class Chunk:
    """Items that travel together."""

    start: int  # position of the first item in the dispatch order
    items: Sequence[Any]
    charges: Charges = _NONE  # against each item; with deaths or delays, a chunk holds one item alone
    n_bytes: int = 0  # when it was sent

    def part(self, at: int, end: int | None = None) -> Chunk:
        """Return some of its items as a chunk of their own."""
        return Chunk(self.start + at, self.items[at:end], self.charges)

    def __lt__(self, other: Chunk) -> bool:
        return self.start < other.start


def as_items(data: Iterable[Any], name: str) -> Sequence[Any]:
    """Return the items as a sequence that only we can change: tuples and ranges as they are, the rest as a list.

    A list is copied too, as its owner may change it while the run goes on. A subclass is iterated over, as it may
    have an order of its own.
    """
    if type(data) in _UNCHANGING:
        return data  # type: ignore[return-value]  # a tuple or a range
    return list(_iterated(data, name))


def as_stream(data: Iterable[Any], name: str) -> Sequence[Any] | Iterator[Any]:
    """Return lists, tuples and ranges as `as_items` does; an iterator for anything else, which may never end."""
    if type(data) in _UNCHANGING or isinstance(data, MutableSequence):
        return as_items(data, name)
    return _iterated(data, name)


def _iterated(data: Iterable[Any], name: str) -> Iterator[Any]:
    try:
        found = iter(data)
    except TypeError:
        if isinstance(data, Iterable):  # its own __iter__ failed
            raise
        raise TypeError(f"{name} must be an iterable of items, not {brief(data, 100)}; give a list") from None
    if not hasattr(type(data), "__iter__") and hasattr(type(data), "__len__"):
        # as torch does: what a dataset makes up as it is asked for has no end of its own
        return itertools.islice(found, len(data))  # type: ignore[arg-type]  # it has a length
    return found


class Work:
    """The items still to be handed out, in dispatch order.

    `items` may be an iterator that never ends. `cost` is in any unit, for sequences only. Chunks start at multiples of
    `align` (the batch size), so that batches are the same whatever the number of workers. `places`: where each item
    stands in the caller's list, where these are only a part of it. `at_risk`: the share of the items that may be in
    flight at once, which a driver that dies may lose.
    """

    def __init__(
        self,
        items: Sequence[Any] | Iterator[Any],
        cost: Sequence[float] | None = None,
        align: int = 1,
        places: Sequence[int] | None = None,
        at_risk: float = 1.0,
    ) -> None:
        self.align = align
        self._places = places
        self._at_risk = at_risk
        self.order: array[int] | None = None
        self.suspects: deque[Chunk] = deque()
        self.returned: list[Chunk] = []  # that wait to be handed out again, as a heap
        self.wake: Callable[[], None] = lambda: None  # has the run that hands it out look for more at once
        self._next = 0
        self._iterator: Iterator[Any] | None = None
        self._sums: array[float] | None = None  # the cost of so many items, from none to all
        self._broken: Exception | None = None
        if isinstance(items, Sequence):
            self._items: Sequence[Any] = items
            self.total: int | None = len(items)
            if cost is not None:
                self.order = array("q", sorted(range(len(items)), key=lambda i: -cost[i]))
                self._sums = array("d", itertools.accumulate((cost[i] for i in self.order), initial=0.0))
        else:
            self._items = ()
            self._iterator = items
            self.total = None

    @property
    def left(self) -> float:
        """Work not handed out yet, in units; infinite while an iterator has not ended."""
        if self.total is None:
            return float("inf")
        fresh = self.total - self._next if self._sums is None else self._sums[-1] - self._sums[self._next]
        return fresh + sum(self.units(chunk) for chunk in self.returned)

    @property
    def empty(self) -> bool:
        """Whether all is handed out (a returned tail may change that)."""
        return not (self.returned or self.suspects) and self.total is not None and self._next >= self.total

    def units(self, chunk: Chunk) -> float:
        """Return how much work a chunk is: its cost, or its number of items."""
        if self._sums is None:
            return float(len(chunk.items))
        return max(self._sums[chunk.start + len(chunk.items)] - self._sums[chunk.start], 1e-12)

    def cap(self, most: int, chunks: int) -> int:
        """Return the most items of a chunk, where so many chunks may be out."""
        if self._sums is not None:  # of costs that are too low by far a chunk would hold all that is left
            left = len(self._items) - self._next + sum(len(chunk.items) for chunk in self.returned)
            most = min(most, left // max(1, chunks) + 1)
        if self._at_risk >= 1.0 or self.total is None:
            return most
        return min(most, int(max(_LEAST_AT_RISK, self.total * self._at_risk)) // max(1, chunks) + 1)

    def positions(self, chunk: Chunk) -> Sequence[int]:
        """Return where a chunk's items stand in the caller's list."""
        begin, end = chunk.start, chunk.start + len(chunk.items)
        span: Sequence[int] = range(begin, end) if self.order is None else self.order[begin:end]
        return span if self._places is None else array("q", map(self._places.__getitem__, span))

    def take(self, units: float, most: int, slots: int = 1) -> Chunk | None:
        """Hand out the next chunk, of at least one item; None if nothing is left."""
        if self.returned:
            chunk = heapq.heappop(self.returned)
            count = min(self._count(chunk.start, units, most), len(chunk.items))
            if count < len(chunk.items):
                heapq.heappush(self.returned, chunk.part(count))
                chunk = chunk.part(0, count)
            return chunk
        if self.total is not None and self._next >= self.total:
            return None
        at = self._next
        if self._iterator is not None:
            items: Sequence[Any] = self._pull(max(1, int(min(units, most))))
        else:
            end = at + self._count(at, units, most)
            order = self.order
            items = self._items[at:end] if order is None else [self._items[i] for i in order[at:end]]
        self._next += len(items)
        chunk = Chunk(at, items)
        if self._iterator is not None and self.total is not None:  # it has just ended
            part = max(1, len(items) // (2 * slots)) if slots > 1 else len(items)
            self.put_back(chunk.part(part))
            chunk = chunk.part(0, part)
        return chunk if items else None

    def _count(self, at: int, units: float, most: int) -> int:
        if self._sums is None:
            count = int(min(units, most))
        else:
            count = min(bisect_left(self._sums, self._sums[at] + units, at + 1) - at - 1, most)
        return max(self.align, count // self.align * self.align)

    def _pull(self, count: int) -> list[Any]:
        assert self._iterator is not None
        items: list[Any] = []
        begin = last = time.perf_counter()
        step = 1
        while len(items) < count:
            asked = min(step, count - len(items))
            had = len(items)
            try:
                items.extend(itertools.islice(self._iterator, asked))
            except Exception as error:
                self._broken = error
            if len(items) - had < asked:
                self.total = self._next + len(items)
                break
            now = time.perf_counter()
            if now - begin > _PATIENCE:
                break
            step = step * 2 if now - last < _PATIENCE / 16 else max(1, step // 4)
            last = now
        return items

    def raise_broken(self) -> None:
        """Raise the iterator's own error, once all items before it have run."""
        if self._broken is not None:
            raise self._broken

    def put_back(self, chunk: Chunk) -> None:
        """Take back items that did not run: a tail, or a lost worker's."""
        if not chunk.items:
            return
        if chunk.charges.suspect:
            self.suspects.append(chunk)
        else:
            heapq.heappush(self.returned, chunk)

    def put_back_alone(self, chunk: Chunk) -> None:
        """Take back items that must go one by one, each by itself in a process."""
        chunk.charges = replace(chunk.charges, suspect=True)
        self.suspects.extend(chunk.part(k, k + 1) for k in range(len(chunk.items)))


class Sizer:
    """Chooses how much work the next chunk of `slots()` slots should be, from the speed and sizes seen.

    `keeps`: outcomes go to disk, and soon.
    """

    def __init__(self, slots: Callable[[], int], keeps: bool = False) -> None:
        self._slots = slots
        self._keeps = keeps
        self._rate = 0.0  # units per second of one slot
        self._most = 0.0  # units of the next chunk, however quick the last ones were
        self._off = 1.0  # how far off the chunks' seconds were, as a share of what was expected
        self._chunks = 0.0
        self._bytes_per_item = 0.0
        self._pace = 0.0  # seconds per item
        self._long = False  # whether items longer than the budget were seen
        self.trip = 0.0  # seconds of a round trip to the nearest slot
        self.most_ahead = MAX_ITEMS  # chunks that may wait in a slot, if they are as large as those so far

    def seen(self, units: float, items: int, seconds: float, n_bytes: int) -> None:
        """Learn from one finished chunk."""
        rate = units / max(seconds, 1e-6)
        weight = 1.0 / min(self._chunks + 1.0, _WARM)
        off = min(1.0, abs(rate / self._rate - 1.0)) if self._rate else 1.0
        self._off += (off - self._off) * weight
        self._chunks += 1.0
        self._rate += (rate - self._rate) * weight
        self._bytes_per_item += (n_bytes / items - self._bytes_per_item) * weight
        self._pace += (seconds / items - self._pace) * weight
        self._long = self._long or seconds > BUDGET * items
        self._most = max(units, min(self._most, self._rate * _LONGEST)) * GROW

    def seconds(self, units: float) -> float:
        """Return the seconds that so much work takes one slot; 0 where none was seen yet."""
        return units / self._rate if self._rate else 0.0

    def next(self, left: float, window: int = 1) -> tuple[float, int, float]:
        """Return the units and the most items of the next chunk, and the seconds it is to take."""
        most = MAX_ITEMS
        if self._bytes_per_item:
            most = min(most, int(MAX_BYTES / self._bytes_per_item) + 1)
        if not self._rate:
            return 0.0, most, BUDGET
        cuts = _CUTS[1] + (_CUTS[0] - _CUTS[1]) * min(1.0, self._off / _VARIES)
        share = max(left / (cuts * max(1, self._slots())), self._rate * max(_FLOOR, self.trip))
        longest = self._longest(left, window)
        units = min(self._most, self._rate * longest, share)
        return units, most, max(min(longest, BUDGET), units / self._rate)

    def _longest(self, left: float, window: int) -> float:
        if self._keeps and self._pace > KEEP:
            return KEEP
        if not self._rate or left == float("inf") or self._pace > _QUICK:
            return BUDGET
        if window == 1:  # the rest, divided, is less
            return _LONGEST
        return min(max(BUDGET, left / (max(1, self._slots()) * self._rate * _SHARE)), _LONGEST)

    def window(self, left: float) -> int:
        """Return how many chunks a slot may hold: while plenty is left a second one, or as many as cover a round trip.

        A chunk that waits behind a long item is out of reach for other slots: it waits only where they are far, too.
        """
        seconds = max(self._pace, self._longest(left, 2))
        far = self.trip > _FAR * seconds
        plenty = 2 * self._rate * self.trip if far else 8 * min(self._most, self._rate * BUDGET)
        if not self._chunks or (self._long and not far) or left <= plenty * max(1, self._slots()):
            return 1
        return 1 + min(1 + int(self.trip / seconds), self.most_ahead)

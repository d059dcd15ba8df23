"""How long the next chunk is: by time as it is measured, by cost where it is known.

Nobody sets a chunk size: it is cut to what a worker did in 50 ms so far (up to six times that where
there is much to do), capped by the bytes its results took, and gets shorter near the end.
"""

from __future__ import annotations

from collections.abc import Callable

BUDGET = 0.05  # seconds of work per chunk: long against a round trip (0.1 ms), short against a wait
KEEP = 0.01  # seconds: an item that took longer goes to disk at once, where outcomes do
SLACK = 1.5  # a chunk may take so many times as long as planned; then its tail goes to whoever is free
_LONGEST = 0.3  # seconds of work per chunk where there is much to do: fewer messages, for the same balance
_QUICK = 0.005  # seconds per item up to which chunks may be that long: a dead worker's chunk is done again
_SHARE = 5  # a chunk longer than the budget is at most this part (a fifth) of all that its slot has to do
# chunks that a slot's share of the rest is cut into, where speeds vary and where they do not
_CUTS = (4.0, 2.0)
_VARIES = 0.25  # how far off, on average, chunks are where speeds vary
GROW = 8  # a chunk may be this many times as long as the last one
MAX_BYTES = 8 << 20  # of results per chunk
MAX_ITEMS = 1 << 16  # per chunk; the list of its results is memory of the driver and of the worker
_FLOOR = 0.0005  # seconds: chunks near the end get no shorter than this, the trip would cost more
_WARM = 8.0  # an average over so many chunks


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

    def next(self, left: float, window: int = 1) -> tuple[float, int, float]:
        """Return the units and the most items of the next chunk, and the seconds it is to take."""
        most = MAX_ITEMS
        if self._bytes_per_item:
            most = min(most, int(MAX_BYTES / self._bytes_per_item) + 1)
        if not self._rate:
            return 0.0, most, BUDGET
        cuts = _CUTS[1] + (_CUTS[0] - _CUTS[1]) * min(1.0, self._off / _VARIES)
        share = max(left / (cuts * max(1, self._slots())), self._rate * _FLOOR)
        soon = self._keeps and self._pace > KEEP
        units = min(self._most, self._rate * (KEEP if soon else self._longest(left, window)), share)
        return units, most, max(KEEP if soon else BUDGET, units / self._rate)

    def _longest(self, left: float, window: int) -> float:
        if left == float("inf") or self._pace > _QUICK:
            return BUDGET
        if window == 1:  # what is left, divided, is less
            return _LONGEST
        return min(max(BUDGET, left / (max(1, self._slots()) * self._rate * _SHARE)), _LONGEST)

    def window(self, left: float) -> int:
        """Return how many chunks a slot may hold: a second one only while plenty is left, and no item is long.

        A chunk that waits behind a long item is a chunk nobody else can take.
        """
        if self._long or not self._chunks:
            return 1
        return 2 if left > 8 * max(1, self._slots()) * min(self._most, self._rate * BUDGET) else 1

"""Times and memory of items in a few numbers; `times.jsonl`, which says what each worker did.

Its records get longer as a run does, so that they stay few.

A record sums up what one worker did between two moments. They are some 30,000 in a run, of any length and on any
number of workers, and are not synced to the disk: a kill costs the last of each worker, and no outcome.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from espnet3.parallel.ledger.errors import LedgerError
from espnet3.parallel.messages import brief
from espnet3.parallel.records import Tally

_LEAST = 0.5  # seconds that a record is about, at least
_RECORDS = 200  # of a worker, in the time in which the run gets e times as long; fewer where workers are many
_MANY = 20  # workers
_SHOWN = 60  # characters of an index
PER_OCTAVE = 8  # bins of the histogram for each doubling of the time: a bin is 9 % wide
_SHORTEST = 1e-7  # seconds; what took less counts as this
_SLOW = 3  # items that are named, of those that one record is about


def edge_of(number: float) -> float:
    """Return where a bin begins, in seconds; the next one begins where it ends."""
    return float(2.0 ** (number / PER_OCTAVE))


@dataclass(slots=True)
class ItemTimes:
    """Times of some items. A step of several items counts as so many of its mean."""

    counts: dict[int, int] = field(default_factory=dict)  # items by bin
    slow: list[tuple[float, int]] = field(default_factory=list)  # seconds and place of the slowest
    memory: int = 0  # bytes that their process had used at most by then; 0 where that is not known

    @classmethod
    def of_steps(cls, steps: Iterable[tuple[int, float]], place: int = 0) -> ItemTimes:
        """Count steps of this process that follow each other, and look at its memory."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = cls(memory=peak if sys.platform == "darwin" else peak * 1024)
        for n, seconds in steps:
            if n:
                found.add(place, n, seconds)
            place += n
        return found

    def add(self, place: int, n: int, seconds: float) -> None:
        """Count one step of `n` items, the first of which stands at `place`."""
        each = seconds / n
        number = math.floor(PER_OCTAVE * math.log2(max(each, _SHORTEST)))  # of its bin (`edge_of`)
        self.counts[number] = self.counts.get(number, 0) + n
        self._name([(each, place)])

    def merge(self, other: ItemTimes) -> None:
        """Add another one's counts."""
        for number, n in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + n
        self._name(other.slow)
        self.memory = max(self.memory, other.memory)

    def _name(self, slow: list[tuple[float, int]]) -> None:
        if slow and (len(self.slow) < _SLOW or slow[0][0] > self.slow[-1][0]):
            self.slow = sorted([*self.slow, *slow], reverse=True)[:_SLOW]


@dataclass(slots=True)
class _Record(ItemTimes):
    begin: float = 0.0
    end: float = 0.0
    busy: float = 0.0
    items: int = 0
    retries: int = 0


@dataclass(eq=False, repr=False)
class TimesRecorder:
    """Collects the work of workers, and writes it down from time to time; as a context manager also at its end.

    `append` appends lines to the file. `first`: the position of the first of `items` in the caller's list. `sharing`:
    how many workers share the run's records, where they have files of their own (the shards of detached runs).
    """

    append: Callable[[list[bytes]], None]
    items: Sequence[Any]
    first: int = 0
    sharing: int = 1
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._begin = self.clock()
        self._open: dict[str, _Record] = {}
        self._lines: list[bytes] = []

    def __enter__(self) -> TimesRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.flush()
        except LedgerError:
            if kind is None:  # else a full disk stays full: the first error is the one to report
                raise

    def took(self, worker: str, block: Any, positions: Sequence[int], ago: float = 0.0) -> None:
        """Note that a worker has just come to the end of the items of an `engine.loop.Block`, if there are any."""
        if block.times is None or not block.values:
            return
        now = self.clock() - ago
        begin = now - block.seconds
        share = max(1.0, max(self.sharing, len(self._open)) / _MANY)
        period = max(_LEAST, (now - self._begin) * share / _RECORDS)
        if worker in self._open and begin - self._open[worker].end > period:
            self._close(worker)  # it was idle, which is not smeared over its work
        if worker not in self._open:
            self._open[worker] = _Record(begin=begin, end=now)
        record = self._open[worker]
        record.end = max(record.end, now)
        record.busy += block.seconds
        record.items += len(block.values)
        record.retries += block.retries
        record.merge(replace(block.times, slow=[(s, positions[p]) for s, p in block.times.slow]))
        if now - record.begin >= period:
            self._close(worker)
            self._write()

    def came(self, worker: str, when: float, imports: float, env: float) -> None:
        """Note that a worker is ready: when, after how many seconds of imports, and of building its env."""
        self._note(worker=worker, came=when, imports=imports, env=env)

    def workers(self, tally: Tally) -> None:
        """Note the workers that have come and gone since this was last called."""
        while tally.came:
            self.came(*tally.came.pop(0))
        while tally.went:
            worker, when = tally.went.pop(0)
            self._close(worker)
            self._note(worker=worker, gone=when)

    def flush(self) -> None:
        """Write all that is left."""
        for worker in list(self._open):
            self._close(worker)
        self._write()

    def _close(self, worker: str) -> None:
        record = self._open.pop(worker, None)
        if record is not None:
            slow = [[round(s, 6), at, brief(self.items[at - self.first], _SHOWN)] for s, at in record.slow]
            self._note(worker=worker, **{**asdict(record), "slow": slow})

    def _note(self, **facts: Any) -> None:
        facts = {name: round(fact, 4) if isinstance(fact, float) else fact for name, fact in facts.items()}
        self._lines.append(json.dumps(facts, separators=(",", ":")).encode() + b"\n")

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self.append(lines)

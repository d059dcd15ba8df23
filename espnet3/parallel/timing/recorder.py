"""Writes `times.jsonl`: what each worker did, in records that get longer as a run does, so that they stay few.

A record sums up what one worker did between two moments. They are some 30,000 in a run, of any length and on any
number of workers, and are not synced to the disk: a kill costs the last of each worker, and no outcome.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from espnet3.parallel.ledger.errors import LedgerError
from espnet3.parallel.records import Tally
from espnet3.parallel.timing.counts import ItemTimes

_LEAST = 0.5  # seconds that a record is about, at least
_RECORDS = 200  # of a worker, in the time in which the run gets e times as long; fewer where workers are many
_MANY = 20  # workers
_SHOWN = 60  # characters of an index


@dataclass(slots=True)
class _Record:
    """A worker's work since `begin`, in seconds since the epoch."""

    begin: float
    end: float
    busy: float = 0.0
    items: int = 0
    retries: int = 0
    times: ItemTimes = field(default_factory=ItemTimes)


class TimesRecorder:
    """Collects the work of workers, and writes it down from time to time; as a context manager also at its end.

    `append` appends lines to the file. `first`: the position of the first of `items` in the caller's list. `workers`:
    how many share the run's records, where they have files of their own (the shards of detached runs).
    """

    def __init__(
        self,
        append: Callable[[list[bytes]], None],
        items: Sequence[Any],
        cost: Sequence[float] | None = None,
        first: int = 0,
        workers: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._append = append
        self._items = items
        self._cost = cost
        self._first = first
        self._workers = workers
        self._clock = clock
        self._begin = clock()
        self._open: dict[str, _Record] = {}
        self._lines: list[bytes] = []

    def __enter__(self) -> TimesRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except LedgerError:
            if kind is None:  # else a full disk stays full: the first error is the one to report
                raise

    def took(
        self,
        worker: str,
        seconds: float,
        n: int,
        times: ItemTimes,
        positions: Sequence[int],
        ago: float = 0.0,
        retries: int = 0,
    ) -> None:
        """Note that a worker has just come to the end of `n` items."""
        now = self._clock() - ago
        begin, period = now - seconds, self._period(now)
        record = self._open.get(worker)
        # it was idle, which is not smeared over its work
        if record is not None and begin - record.end > period:
            self._close(worker)
            record = None
        if record is None:
            record = self._open[worker] = _Record(begin, now)
        record.end = max(record.end, now)
        record.busy += seconds
        record.items += n
        record.retries += retries
        slow, some = ([(s, positions[p]) for s, p in each] for each in (times.slow, times.some))
        record.times.merge(ItemTimes(times.counts, slow, some, times.memory))
        if now - record.begin >= period:
            self._close(worker)
            self._write()

    def came(self, worker: str, when: float, imports: float, env: float) -> None:
        """Note that a worker is ready: when, after how many seconds of imports, and of building its env."""
        self._note(worker=worker, came=round(when, 3), imports=round(imports, 4), env=round(env, 4))

    def workers(self, tally: Tally) -> None:
        """Note the workers that have come and gone since this was last called."""
        while tally.came:
            self.came(*tally.came.pop(0))
        while tally.went:
            worker, when = tally.went.pop(0)
            self._close(worker)
            self._note(worker=worker, gone=round(when, 3))

    def flush(self) -> None:
        """Write all that is left."""
        for worker in list(self._open):
            self._close(worker)
        self._write()

    def _period(self, now: float) -> float:
        share = max(1.0, max(self._workers, len(self._open)) / _MANY)
        return max(_LEAST, (now - self._begin) * share / _RECORDS)

    def _close(self, worker: str) -> None:
        record = self._open.pop(worker, None)
        if record is None:
            return
        slow = [[round(s, 6), place, self._shown(place)] for s, place in record.times.slow]
        facts: dict[str, Any] = {
            "worker": worker,
            "begin": round(record.begin, 3),
            "end": round(record.end, 3),
            "busy": round(record.busy, 4),
            "items": record.items,
            "counts": record.times.counts,
            "slow": slow,
        }
        if record.retries:
            facts["retries"] = record.retries
        if record.times.memory:
            facts["memory"] = record.times.memory
        if self._cost is not None:
            costs = [(s, self._cost[p - self._first]) for s, p in (*record.times.some, *record.times.slow)]
            facts["cost"] = [[round(s, 6), cost] for s, cost in costs]
        self._note(**facts)

    def _shown(self, place: int) -> str:
        try:
            return repr(self._items[place - self._first])[:_SHOWN]
        except Exception:  # a class of the user's own: its name is not worth the run
            return f"at position {place}"

    def _note(self, **facts: Any) -> None:
        self._lines.append(json.dumps(facts, separators=(",", ":")).encode() + b"\n")

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._append(lines)

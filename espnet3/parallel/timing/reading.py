"""Reads `times.jsonl` back: what the workers of a run's sessions and jobs did, and when."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import accumulate
from pathlib import Path
from typing import Any

from espnet3.parallel.ledger.files import NewLines
from espnet3.parallel.ledger.split import SESSION, SPLIT, TIMES, split_folders
from espnet3.parallel.timing.recorder import edge_of

_SLOWEST = 20


@dataclass(frozen=True, slots=True)
class Stint:
    """A worker's work between two moments, in seconds since the epoch."""

    worker: str
    begin: float  # of the first item
    end: float  # of the last item
    busy: float  # seconds spent on items: with several threads perhaps more than from begin to end
    items: int
    memory: int = 0  # bytes that its process had used at most by the end; 0 where that is not recorded


@dataclass(frozen=True, slots=True)
class Arrival:
    """A worker became ready: at `when`, after so many seconds of imports, and of building its env."""

    worker: str
    when: float
    imports: float
    env: float


@dataclass(slots=True)
class RunTimes:
    """All that a run's folder says of its items' times; empty for a run of before they were recorded."""

    stints: list[Stint] = field(default_factory=list)  # by time, as the next two
    arrivals: list[Arrival] = field(default_factory=list)
    losses: list[tuple[str, float]] = field(default_factory=list)  # workers that died, and when
    counts: dict[int, int] = field(default_factory=dict)  # items by the bin of their time (`edge_of`)
    # the slowest: seconds, position, index as text
    slow: list[tuple[float, int, str]] = field(default_factory=list)
    retries: int = 0

    @property
    def items(self) -> int:
        """Items whose time is known; one that ran twice counts twice."""
        return sum(self.counts.values())

    @property
    def busy(self) -> float:
        """Seconds that all of them took."""
        return sum(stint.busy for stint in self.stints)

    @property
    def memory(self) -> int:
        """Bytes that one worker used at most; 0 where that is not recorded."""
        return max((stint.memory for stint in self.stints), default=0)

    def quantiles(self, shares: Sequence[float]) -> list[tuple[float, float]]:
        """Return of each share the time that so many items do not exceed, to within a bin (9 %)."""
        numbers = sorted(self.counts)
        # items of each bin and those below
        up_to = list(accumulate(self.counts[number] for number in numbers))
        places = [bisect_left(up_to, share * self.items) for share in shares]
        return [(share, edge_of(numbers[at] + 0.5)) for share, at in zip(shares, places, strict=True)]


class TimesReader:
    """Reads the times of a run's folder, its shards' jobs included; a second look goes on where the first one ended."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lines = NewLines()
        self._times = RunTimes()
        self._slow: dict[int, tuple[float, int, str]] = {}

    def look(self) -> RunTimes:
        """Return all that is recorded by now, in the same object as before."""
        times = self._times
        for kind in (SPLIT, SESSION):
            for split in split_folders(self._run, kind):
                for said in self._lines.records(split / TIMES):
                    self._take(said)
        times.stints.sort(key=lambda one: one.begin)
        times.arrivals.sort(key=lambda one: one.when)
        times.losses.sort(key=lambda one: one[1])
        times.slow = nlargest(_SLOWEST, self._slow.values())
        return times

    def _take(self, said: dict[str, Any]) -> None:
        worker, times = str(said.get("worker")), self._times
        if "came" in said:
            times.arrivals.append(Arrival(worker, said["came"], said["imports"], said["env"]))
        elif "gone" in said:
            times.losses.append((worker, said["gone"]))
        elif "begin" in said:
            times.stints.append(Stint(**{name: said[name] for name in Stint.__slots__ if name in said}))
            for number, n in said["counts"].items():
                times.counts[int(number)] = times.counts.get(int(number), 0) + n
            for seconds, place, name in said["slow"]:
                self._slow[place] = max(self._slow.get(place, (0.0, place, name)), (seconds, place, name))
            times.retries += said.get("retries", 0)
            if len(self._slow) > 50 * _SLOWEST:
                self._slow = {one[1]: one for one in nlargest(_SLOWEST, self._slow.values())}


def shard_of(worker: str) -> str:
    """Return the shard of a detached job's worker, which is called "shard 3 on host"."""
    return worker.partition(" on ")[0]


def worker_name(worker: str) -> str:
    """Return a worker's name for people: "worker 3", or its own where that has more words."""
    return worker if " " in worker else f"worker {worker.rpartition('/')[2]}"

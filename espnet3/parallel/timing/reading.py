"""Reads `times.jsonl` back: what the workers of a run's sessions and jobs did, and when."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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


@dataclass(frozen=True, slots=True)
class RunTimes:
    """All that a run's folder says of its items' times; empty for a run of before they were recorded."""

    stints: tuple[Stint, ...] = ()  # by time, as the next two
    arrivals: tuple[Arrival, ...] = ()
    losses: tuple[tuple[str, float], ...] = ()  # workers that died, and when
    counts: dict[int, int] = field(default_factory=dict)  # items by the bin of their time (`edge_of`)
    slow: tuple[tuple[float, int, str], ...] = ()  # the slowest: seconds, position, index as text
    costs: tuple[tuple[float, float], ...] = ()  # seconds and cost of a sample, where there is `item_cost`
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
        up_to = list(
            accumulate(self.counts[number] for number in numbers)
        )  # items of each bin and those below
        places = [bisect_left(up_to, share * self.items) for share in shares]
        return [(share, edge_of(numbers[at] + 0.5)) for share, at in zip(shares, places, strict=True)]


class TimesReader:
    """Reads the times of a run's folder, its shards' jobs included; a second look goes on where the first one ended."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._lines = NewLines()
        self._retries = 0
        self._stints: list[Stint] = []
        self._arrivals: list[Arrival] = []
        self._losses: list[tuple[str, float]] = []
        self._counts: Counter[int] = Counter()
        self._slow: dict[int, tuple[float, int, str]] = {}
        self._costs: list[tuple[float, float]] = []

    def look(self) -> RunTimes:
        """Return all that is recorded by now."""
        for kind in (SPLIT, SESSION):
            for split in split_folders(self._run, kind):
                for said in self._lines.records(split / TIMES):
                    self._take(said)
        return RunTimes(
            tuple(sorted(self._stints, key=lambda one: one.begin)),
            tuple(sorted(self._arrivals, key=lambda one: one.when)),
            tuple(sorted(self._losses, key=lambda one: one[1])),
            dict(self._counts),
            tuple(nlargest(_SLOWEST, self._slow.values())),
            tuple(self._costs),
            self._retries,
        )

    def _take(self, said: dict[str, Any]) -> None:
        worker = str(said.get("worker"))
        if "came" in said:
            imports, env = said.get("imports", 0.0), said.get("env", 0.0)
            self._arrivals.append(Arrival(worker, said["came"], imports, env))
        elif "gone" in said:
            self._losses.append((worker, said["gone"]))
        elif "begin" in said:
            self._stints.append(
                Stint(worker, said["begin"], said["end"], said["busy"], said["items"], said.get("memory", 0))
            )
            self._counts.update({int(number): n for number, n in said["counts"].items()})
            for seconds, place, name in said["slow"]:
                self._slow[place] = max(self._slow.get(place, (0.0, place, name)), (seconds, place, name))
            self._retries += said.get("retries", 0)
            self._costs += [(seconds, cost) for seconds, cost in said.get("cost", ())]
            if len(self._slow) > 50 * _SLOWEST:
                self._slow = {one[1]: one for one in nlargest(_SLOWEST, self._slow.values())}


def shard_of(worker: str) -> str:
    """Return the shard of a detached job's worker, which is called "shard 3 on host"."""
    return worker.partition(" on ")[0]


def worker_name(worker: str) -> str:
    """Return a worker's name for people: "worker 3", or its own where that has more words."""
    return worker if " " in worker else f"worker {worker.rpartition('/')[2]}"

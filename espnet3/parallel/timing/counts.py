"""Times and memory of any number of items in a few numbers: a histogram, the slowest, a sample."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_STATUS = "/proc/self/status"
# of the program that runs now; getrusage also counts the one that started it, up to its exec
_PEAK = b"VmHWM:"
_EVERY = 0.02  # seconds between two looks: one takes some 10 us, and a peak stays to be seen by the next one
_seen: dict[int, tuple[float, int]] = {}  # the last look and what it saw, by process: a fork has its own
PER_OCTAVE = 8  # bins of the histogram for each doubling of the time: a bin is 9 % wide
SHORTEST = 1e-7  # seconds; what took less counts as this
_SLOW, _SOME = 3, 4  # items that are named, of those that one record is about


def bin_of(seconds: float) -> int:
    """Return the number of the bin that a time falls into."""
    return math.floor(PER_OCTAVE * math.log2(max(seconds, SHORTEST)))


def edge_of(number: float) -> float:
    """Return where a bin begins, in seconds; the next one begins where it ends."""
    return float(2.0 ** (number / PER_OCTAVE))


@dataclass(slots=True)
class ItemTimes:
    """Times of some items. A step of several items counts as so many of its mean."""

    counts: dict[int, int] = field(default_factory=dict)  # items by bin
    slow: list[tuple[float, int]] = field(default_factory=list)  # seconds and place of the slowest
    some: list[tuple[float, int]] = field(default_factory=list)  # the same of a few others
    memory: int = 0  # bytes that their process had used at most by then; 0 where that is not known

    @classmethod
    def of_steps(cls, steps: Iterable[tuple[int, float]], place: int = 0) -> ItemTimes:
        """Count steps of this process that follow each other, and look at its memory."""
        found = cls(memory=recent_peak())
        for n, seconds in steps:
            if n:
                found.add(place, n, seconds)
            place += n
        return found

    def add(self, place: int, n: int, seconds: float) -> None:
        """Count one step of `n` items, the first of which stands at `place`."""
        each = seconds / n
        number = bin_of(each)
        self.counts[number] = self.counts.get(number, 0) + n
        self._name([(each, place)], [(each, place)] if n == 1 else [])

    def merge(self, other: ItemTimes, move: int = 0) -> None:
        """Add another one's counts, with places moved by `move`."""
        for number, n in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + n
        self._name([(s, p + move) for s, p in other.slow], [(s, p + move) for s, p in other.some])
        self.memory = max(self.memory, other.memory)

    def _name(self, slow: list[tuple[float, int]], some: list[tuple[float, int]]) -> None:
        if slow and (len(self.slow) < _SLOW or slow[0][0] > self.slow[-1][0]):
            self.slow = sorted([*self.slow, *slow], reverse=True)[:_SLOW]
        if len(self.some) < _SOME:
            self.some = [*self.some, *some][:_SOME]

    def fields(self) -> tuple[Any, ...]:
        """Return what travels: plain data."""
        return self.counts, self.slow, self.some, self.memory


def recent_peak() -> int:
    """Return what `peak_memory` has returned within the last 20 ms, or does now."""
    process, now = os.getpid(), time.monotonic()
    when, peak = _seen.get(process, (-_EVERY, 0))
    if now - when >= _EVERY:
        peak = peak_memory()
        _seen[process] = now, peak
    return peak


def peak_memory() -> int:
    """Return the most memory that this process has held so far, in bytes, as `VmHWM` of proc(5) or `ru_maxrss`."""
    try:
        with open(_STATUS, "rb", buffering=0) as stream:
            said = stream.read(4096)
        begin = said.index(_PEAK) + len(_PEAK)
        return int(said[begin : said.index(b"kB", begin)]) * 1024
    except (OSError, ValueError):  # not Linux, or a kernel that does not say it
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

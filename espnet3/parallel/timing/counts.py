"""How long items took and what memory, in a few numbers however many they are: a histogram, the slowest, a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from espnet3.parallel.timing.memory import recent_peak

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
    """How long some items took. A step of several items counts as so many of its mean.

    Attributes:
        counts: How many items by bin.
        slow: Seconds and place of the slowest ones.
        some: The same of a few others, as they come.
        memory: Bytes that the process of the items had used at most by then; 0 where nobody has looked.
    """

    counts: dict[int, int] = field(default_factory=dict)
    slow: list[tuple[float, int]] = field(default_factory=list)
    some: list[tuple[float, int]] = field(default_factory=list)
    memory: int = 0

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
        """Add what another one has counted, whose places are `move` less."""
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

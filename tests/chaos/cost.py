"""What a disturbance cost: the items that were computed again because of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Disturbance:
    """What one disturbance cost.

    Attributes:
        kind: Its name.
        first: The number of its first start.
        on_disk: What the folder held after it, before files were damaged.
        bound: Items that may be computed again because of it.
        damaged: Files were damaged, not only processes.
        again: Items that were computed again.
    """

    kind: str
    first: int
    on_disk: frozenset[int] = frozenset()
    bound: int = 0
    damaged: bool = False
    again: int = 0


def count_again(disturbances: Sequence[Disturbance], calls: Sequence[Sequence[int]]) -> None:
    """Count each item that was computed again, for the disturbance that lost it.

    Args:
        disturbances: In order; their `again` grows.
        calls: Of each start, the items begun; the last start was not disturbed.

    Raises:
        AssertionError: The last start has computed an item twice.
    """
    places = [sum(d.first <= start for d in disturbances) - 1 for start in range(len(calls))]
    places[-1] = len(disturbances)
    repeated = sorted(idx for idx, times in Counter(calls[-1]).items() if times > 1)
    assert not repeated, f"items {repeated} were computed more than once in a start that was not disturbed"
    last: dict[int, int] = {}  # where an item was computed before
    for now, items in zip(places, calls, strict=True):
        for idx in items:
            if idx in last:
                _lost_by(disturbances, idx, last[idx], now).again += 1
            last[idx] = now


def _lost_by(disturbances: Sequence[Disturbance], idx: int, was: int, now: int) -> Disturbance:
    """Return what lost an item that was computed at one place and again at a later one, or at the same."""
    damaging = [d for d in disturbances[was:now] if d.damaged]
    in_flight = was == now or idx not in disturbances[was].on_disk
    return disturbances[was] if in_flight or not damaging else damaging[-1]

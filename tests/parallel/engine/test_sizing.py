"""How long the next chunk is."""

from __future__ import annotations

import itertools

from espnet3.parallel.engine.work import BUDGET, MAX_BYTES, Sizer


def test_chunk_lengths_follow_the_measured_speed():
    """After a few chunks their length is worth the time budget, and it never grew more than eightfold."""
    sizer = Sizer(lambda: 2)
    sizes, n = [], 1
    for _ in range(12):
        sizer.seen(n, n, n * 1e-5, 0)
        n = int(sizer.next(5 * 10**4, window=2)[0])
        sizes.append(n)
    assert all(b <= 8 * a for a, b in itertools.pairwise(sizes))
    assert abs(sizes[-1] - BUDGET / 1e-5) / sizes[-1] < 0.05


def test_items_over_ten_milliseconds_travel_alone_where_they_are_kept():
    """Quicker ones travel together as they do elsewhere."""

    def items(seconds: float, keeps: bool) -> int:
        sizer = Sizer(lambda: 2, keeps)
        for _ in range(9):
            sizer.seen(1, 1, seconds, 0)
        return max(1, int(sizer.next(10**6, window=2)[0]))

    assert items(0.012, keeps=True) == 1 < items(0.012, keeps=False)
    assert items(0.006, keeps=True) == items(0.006, keeps=False) > 1


def test_slow_items_travel_alone():
    """However much there is to do, a chunk is one item where an item takes longer than the budget."""
    sizer = Sizer(lambda: 2)
    for _ in range(9):
        sizer.seen(1, 1, 0.1, 0)
    for left in (1000, 20, 6):
        for window in (1, 2):
            assert sizer.next(left, window)[0] < 1


def test_large_results_make_short_runs():
    """A chunk is never expected to carry much more than eight megabytes."""
    sizer = Sizer(lambda: 2)
    sizer.seen(10, 10, 1e-6, 10 * 2**20)
    assert sizer.next(10**9)[1] <= MAX_BYTES / 2**20 + 1

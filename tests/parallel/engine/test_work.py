"""Cutting indices into chunks, and how long the next one is."""

import itertools

from espnet3.parallel.engine.work import BUDGET, Chunk, Sizer, Work


def drain(work: Work, units: float = 7, most: int = 100) -> list[Chunk]:
    return list(iter(lambda: work.take(units, most), None))


def test_a_range_is_sliced_and_never_listed():
    """A chunk of a range is a range, so ten million indices cost nothing in the driver."""
    assert isinstance(Work(range(10**9)).take(10**6, 10**6).items, range)


def test_a_tail_goes_out_before_what_is_new():
    """What a worker hands back is the next thing to be taken, cut to the size asked for."""
    work = Work(range(100))
    chunk = work.take(50, 100)
    work.put_back(Chunk(chunk.start + 10, chunk.items[10:]))
    again = work.take(5, 100)
    assert (again.start, list(again.items)) == (10, [10, 11, 12, 13, 14])
    assert work.take(100, 100).start == 15


def test_the_dearest_items_go_first_and_chunks_are_cut_by_cost():
    """With costs the order is dearest first, and a chunk holds about the cost that was asked for."""
    cost = [1.0] * 90 + [50.0] * 2 + [10.0] * 8
    work = Work(range(100), cost)
    chunks = drain(work, units=50, most=1000)
    assert list(chunks[0].items) == [90] and list(chunks[1].items) == [91]
    assert sorted(i for r in chunks for i in r.items) == list(range(100))
    assert all(sum(cost[i] for i in r.items) <= 50 for r in chunks)


def test_batches_start_at_the_same_places_whatever_the_chunk_sizes():
    """Chunks start at multiples of the batch size, so batches do not depend on speed or workers."""
    for units in (1, 3, 10, 64):
        assert all(r.start % 8 == 0 for r in drain(Work(range(100), align=8), units))


def test_a_slow_iterator_does_not_hold_a_chunk_back():
    """A chunk leaves with what an iterator gave in ten milliseconds, however many were asked for."""
    import threading

    gate = threading.Event()

    def slow():
        for i in range(1000):
            gate.wait(0.02)
            yield i

    chunk = Work(slow()).take(1000, 1000)
    assert 1 <= len(chunk.items) < 100


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


def test_slow_items_travel_alone():
    """However much there is to do, a chunk is one item where an item takes longer than the budget."""
    sizer = Sizer(lambda: 2)
    for _ in range(9):
        sizer.seen(1, 1, 0.1, 0)
    for left in (1000, 20, 6):
        for window in (1, 2):
            assert sizer.next(left, window)[0] < 1


def test_nothing_waits_behind_a_long_item_of_a_near_slot():
    """Only where a round trip costs a tenth of an item or more is one sent ahead of a long one."""
    sizer = Sizer(lambda: 2)
    for _ in range(9):
        sizer.seen(1, 1, 0.1, 0)
    windows = []
    for sizer.trip in (0.0, 0.005, 0.02, 0.25):
        windows.append([sizer.window(left) for left in (1000, 4)])
    assert windows == [[1, 1], [1, 1], [2, 2], [4, 1]]

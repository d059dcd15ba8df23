"""Cutting indices into chunks."""

from __future__ import annotations

import itertools

from espnet3.parallel.engine.work import Chunk, Work


def drain(work: Work, units: float = 7, most: int = 100) -> list[Chunk]:
    """Take all there is."""
    return list(iter(lambda: work.take(units, most), None))


def test_chunks_cover_a_range_once_and_in_order():
    """Without a cost hint the chunks are the caller's order, cut, with nothing left out or doubled."""
    chunks = drain(Work(range(100)))
    assert [i for r in chunks for i in r.items] == list(range(100))
    assert [r.start for r in chunks] == list(itertools.accumulate([0, *[len(r.items) for r in chunks[:-1]]]))


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


def test_what_is_left_counts_returned_work_and_costs():
    """`left` is the work not handed out, in the unit of the costs, tails included."""
    work = Work(range(4), [4.0, 3.0, 2.0, 1.0])
    assert work.left == 10
    chunk = work.take(4, 10)
    assert work.left == 6
    work.put_back(chunk)
    assert work.left == 10


def test_an_endless_iterator_is_pulled_as_it_is_needed():
    """Only what goes into a chunk is taken from an iterator."""
    source = itertools.count()
    work = Work(source)
    assert list(work.take(10, 10).items) == list(range(10))
    assert next(source) == 10
    assert work.left == float("inf") and not work.empty


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


def test_an_iterator_that_ends_ends_the_work():
    """The end of an iterator is noticed with its last chunk, and `empty` says so."""
    work = Work(iter(range(5)))
    assert list(work.take(10, 10).items) == list(range(5))
    assert work.empty and work.take(10, 10) is None


def test_the_last_items_of_an_iterator_are_shared_out():
    """A chunk that reaches an iterator's end is a part of what there is, as the others have nothing else to do."""
    work = Work(iter(range(24)))
    assert len(work.take(1000, 1000, slots=4).items) == 3
    assert [i for chunk in drain(work) for i in chunk.items] == list(range(3, 24))


def test_costs_that_are_far_too_low_put_no_more_than_a_share_into_a_chunk():
    """Items that are said to cost nothing are not all one worker's."""
    work = Work(range(9), [1.0] + [0.0] * 8)
    assert len(work.take(1.0, work.cap(1000, 2)).items) == 1
    assert len(work.take(1.0, work.cap(1000, 2)).items) == 3


def test_suspects_are_kept_apart_one_item_each():
    """Items of a dead worker's chunk become chunks of one item that `take` does not mix with the rest."""
    work = Work(range(10))
    chunk = work.take(4, 10)
    work.put_back_alone(chunk, 1)
    assert [(list(s.items), s.deaths) for s in work.suspects] == [([0], 1), ([1], 1), ([2], 1), ([3], 1)]
    assert work.take(3, 10).start == 4

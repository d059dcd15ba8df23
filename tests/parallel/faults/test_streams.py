"""`parallel_for` over data without an end: bounded memory, an early end, a slow consumer.

How far a stream runs ahead is bounded in chunks, each of at most 50 ms of work: items that sleep bound their number.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from espnet3.parallel import parallel_for, set_parallel
from tests.parallel.faults.items import (
    Alive,
    dies_once_at_40,
    first_waits,
    megabyte,
    one_ms,
    ten_ms,
    waits_from_33,
)
from tests.parallel.faults.watching import PATIENCE, TWO, Mailbox, acting, nothing_left
from tests.waiting import wait_until

BUFFERED = 32  # chunks that an ordered stream holds back for an earlier one that is slow
LOOKS = 5  # in a row that must find nothing new, before a stream counts as standing still
BETWEEN = 0.1  # seconds between looks; the driver looks around every 0.2 s


def at_most_ahead(*, ordered: bool) -> int:
    """Return how many chunks may be out of the data of two workers and not with the consumer.

    Two are with each worker, and as many have just come back and wait to be read.
    """
    return 8 + (BUFFERED if ordered else 0)


class Counted:
    """An endless generator that knows how far it was pulled."""

    def __init__(self, make: Callable[[int], object] = int) -> None:
        self.pulled = 0
        self.closed = False
        self._make = make

    def __iter__(self) -> Iterator[object]:
        try:
            for i in itertools.count():
                self.pulled += 1
                yield self._make(i)
        finally:
            self.closed = True

    def stands_still(self, enough: float = float("inf")) -> int:
        """Wait until nothing more is pulled, or more than `enough` is; return how far it was pulled."""
        end = time.monotonic() + PATIENCE
        last, same = -1, 0
        while same < LOOKS and self.pulled <= enough:
            assert time.monotonic() < end, f"{self.pulled} items were pulled, and it goes on"
            same = same + 1 if self.pulled == last else 0
            last = self.pulled
            time.sleep(BETWEEN)  # there is no event for what does not happen
        return self.pulled


@pytest.mark.parametrize("n_workers", [1, 2])
def test_memory_is_bounded(n_workers: int) -> None:
    """The driver holds the items and results of the chunks that are out, and of no others."""
    set_parallel({**TWO, "n_workers": n_workers})
    # here one chunk of 100 ms is out; two workers have chunks of 50 ms
    items = 100 if n_workers == 1 else 50 * at_most_ahead(ordered=True)
    gc.collect()
    before, most = Alive.now, 0
    with nothing_left():
        results = parallel_for(one_ms, Counted(Alive), ordered=True)
        for count, _ in enumerate(results):
            most = max(most, Alive.now - before)
            if count == 4 * items:
                break
        results.close()
    # an item and its result each, and what the two loops hold; on a busy machine a chunk may be half again as long
    assert most <= 3 * items + 2
    del _
    gc.collect()
    assert Alive.now == before


def test_closed_early() -> None:
    """Closing the generator ends the run at once: nothing is left, and the data is pulled no further."""
    set_parallel(TWO)
    data = Counted()
    with nothing_left():
        results = parallel_for(abs, data, ordered=True)
        first = [next(results) for _ in range(100)]
        results.close()
        pulled = data.pulled
    assert data.pulled == pulled
    assert first == list(range(100))
    assert list(results) == []


# 50 ms are five items of 10 ms; of 1 MB, the item that makes 8 MB full is in its chunk too
@pytest.mark.parametrize(("item", "ordered", "to_a_chunk"), [(ten_ms, True, 5), (megabyte, False, 9)])
def test_a_slow_consumer(item: Callable[[int], object], ordered: bool, to_a_chunk: int) -> None:
    """A consumer that does not ask holds the run back: workers finish the chunks they have, and wait.

    Results of 1 MB wait in the driver by the chunk of 8 MB, not by the thousand.
    """
    set_parallel(TWO)
    data = Counted()
    results = parallel_for(item, data, ordered=ordered)
    for _ in range(20):
        next(results)
    bound = 20 + to_a_chunk * at_most_ahead(ordered=ordered)
    assert data.stands_still(bound) <= bound
    results.close()


@pytest.mark.parametrize("item", [waits_from_33, dies_once_at_40])
def test_a_tail_that_an_ordered_stream_waits_for(
    item: Callable[..., int], folder: Path, mailbox: Mailbox
) -> None:
    """A chunk that comes back in part, behind a full buffer of later results, is finished in order: no deadlock."""
    set_parallel(TWO)
    data = Counted()
    results = parallel_for(item, data, ordered=True, root=str(folder))
    with acting(lambda: let_go(folder, mailbox, data)):
        assert [next(results) for _ in range(50_000)] == list(range(50_000))
    results.close()


def let_go(
    folder: Path, mailbox: Mailbox, data: Counted, enough: float = float("inf"), least: int = 0
) -> int:
    """Let the item go that the stream waits for, once the others can do no more; return how far they got."""
    mailbox.take()
    try:
        wait_until(lambda: data.pulled > least)
        return data.stands_still(enough)
    finally:
        (folder / "gate").touch()


def test_nobody_runs_far_ahead_of_an_ordered_stream(folder: Path, mailbox: Mailbox) -> None:
    """While the first item takes its time, the other workers do a bounded number of chunks, and then wait."""
    set_parallel(TWO)
    data = Counted()
    results = parallel_for(first_waits, data, ordered=True, root=str(folder))
    bound = 10 * at_most_ahead(ordered=True)  # 50 ms are ten of these items
    pulled = []
    with acting(lambda: pulled.append(let_go(folder, mailbox, data, bound, BUFFERED))):
        assert [next(results) for _ in range(200)] == list(range(200))
    assert BUFFERED < pulled[0] <= bound
    results.close()

"""`parallel_for` over data without an end: flat memory, an early end, a slow consumer."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from espnet3.parallel import parallel_for, parallel_map, set_parallel
from tests.parallel.faults.watching import Mailbox, acting, nothing_left, once, tell

TWO = {"env": "local", "n_workers": 2}
MB = 1 << 20


class Counted:
    """An endless generator that knows how far it was pulled."""

    def __init__(self) -> None:
        self.pulled = 0
        self.closed = False

    def __iter__(self) -> Iterator[int]:
        try:
            for i in itertools.count():
                self.pulled += 1
                yield i
        finally:
            self.closed = True


@pytest.mark.parametrize("ordered", [False, True], ids=["as completed", "ordered"])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_memory_stays_flat(n_workers: int, ordered: bool) -> None:
    """The driver needs no more memory after 300,000 items than after 50,000."""
    set_parallel({**TWO, "n_workers": n_workers})
    process, early = psutil.Process(), 0
    with nothing_left():
        results = parallel_for(abs, itertools.count(), ordered=ordered)
        for count, _ in enumerate(results):
            if count == 50_000:
                early = process.memory_info().rss
            if count == 300_000:
                break
        grown = process.memory_info().rss - early
        results.close()
    assert grown < 48 * MB  # 250,000 results that piled up would be more with every run


@pytest.mark.parametrize("ordered", [False, True], ids=["as completed", "ordered"])
@pytest.mark.parametrize("n_workers", [1, 2])
def test_closed_early(n_workers: int, ordered: bool) -> None:
    """Closing the generator ends the run at once: nothing is left, and the data is pulled no further."""
    set_parallel({**TWO, "n_workers": n_workers})
    data = Counted()
    with nothing_left():
        results = parallel_for(abs, data, ordered=ordered)
        first = [next(results) for _ in range(100)]
        results.close()
        pulled = data.pulled
    assert data.pulled == pulled
    assert len(set(first)) == 100
    if ordered:
        assert first == list(range(100))
    assert list(results) == []


def both_in_long_items(folder: Path, mailbox: Mailbox) -> Iterator[int]:
    """Return a stream that has given one result, with both workers in an item of 100 s."""
    os.mkfifo(folder / "gate")
    results = parallel_for(long_after_0, itertools.count(), root=str(folder))
    next(results)
    mailbox.take(2)
    return results


def test_closed_early_in_the_middle_of_long_items(folder: Path, mailbox: Mailbox) -> None:
    """Closing it does not wait for items that take long, in a cluster of its own."""
    set_parallel(TWO)
    with nothing_left():
        both_in_long_items(folder, mailbox).close()


def long_after_0(x: int, root: str) -> int:
    """Return the first item once the second runs, on the other worker; all others take long."""
    if x == 0:
        Path(root, "gate").read_text()  # waits for somebody to write
        return x
    tell(f"{root}/mail")
    if x == 1:
        Path(root, "gate").write_text("go")
    time.sleep(100)
    return x


@pytest.mark.parametrize("ordered", [False, True], ids=["as completed", "ordered"])
def test_a_slow_consumer(ordered: bool) -> None:
    """A consumer that does not ask holds the run back: only a few runs are pulled ahead of it."""
    set_parallel(TWO)
    data = Counted()
    results = parallel_for(ten_ms, data, ordered=ordered)
    for count in range(1, 11):
        next(results)
        time.sleep(0.1)  # the consumer's own work
        # a run is about 50 ms of work, so five of these items; a slot may hold two of them
        assert data.pulled - count < 100
    results.close()


def ten_ms(x: int) -> int:
    """Work for ten milliseconds."""
    time.sleep(0.01)
    return x


def test_a_slow_consumer_of_large_results() -> None:
    """Results of 1 MB wait in the driver by the run, not by the thousand."""
    set_parallel(TWO)
    data = Counted()
    process = psutil.Process()
    results = parallel_for(megabyte, data)
    for _ in range(20):
        next(results)
    before = process.memory_info().rss
    for _ in range(20):
        next(results)
        time.sleep(0.02)  # the consumer's own work
    assert data.pulled < 400
    assert process.memory_info().rss - before < 200 * MB
    results.close()


def megabyte(x: int) -> bytes:
    """Return a large result."""
    return os.urandom(MB)


def test_a_generator_that_raises() -> None:
    """An error of the data itself reaches the consumer as it is, after what came before it; nothing is left."""

    def data() -> Iterator[int]:
        yield from range(50)
        raise LookupError("the corpus is broken here")

    for n_workers in (1, 2):
        set_parallel({**TWO, "n_workers": n_workers})
        with nothing_left(), pytest.raises(LookupError, match="the corpus is broken here"):
            list(parallel_for(abs, data()))


def test_one_item_that_is_slow_holds_back_an_ordered_stream() -> None:
    """Ordered, with its first item slow, a stream runs only so far ahead, and then catches up in order."""
    set_parallel(TWO)
    data = Counted()
    results = parallel_for(slow_first, data, ordered=True)
    assert [next(results) for _ in range(2000)] == list(range(2000))
    assert data.pulled < 40 * (1 << 18)
    results.close()


def slow_first(x: int) -> int:
    """Take half a second for the first item."""
    if x == 0:
        time.sleep(0.5)
    return x


def test_no_data(folder: Path) -> None:
    """Nothing in, nothing out, and no worker started."""
    set_parallel(TWO)
    with nothing_left():
        assert list(parallel_for(abs, [])) == []
        assert list(parallel_for(abs, iter([]))) == []
        assert parallel_map(abs, []) == []


@pytest.mark.parametrize("n_workers", [2, 3])
def test_a_tail_that_an_ordered_stream_waits_for(n_workers: int, folder: Path) -> None:
    """A run that comes back in part, behind a full buffer of later results, is finished: no deadlock.

    Items 33 to 39 are slow, in a run with more behind them that go back; meanwhile the others fill the buffer.
    """
    set_parallel({**TWO, "n_workers": n_workers})
    results = parallel_for(slow_from_33, itertools.count(), ordered=True)
    assert [next(results) for _ in range(50_000)] == list(range(50_000))
    results.close()


def slow_from_33(x: int) -> int:
    """Take a third of a second for a few items, far more than a run's 50 ms."""
    if 33 <= x < 40:
        time.sleep(0.3)
    return x


def test_a_worker_that_dies_in_the_item_an_ordered_stream_waits_for(folder: Path) -> None:
    """The same where the worker dies in that item: its run goes back, and the stream goes on in order."""
    set_parallel(TWO)
    results = parallel_for(dies_once_at_40, itertools.count(), ordered=True, root=str(folder))
    assert [next(results) for _ in range(50_000)] == list(range(50_000))
    results.close()


def dies_once_at_40(x: int, root: str) -> int:
    """Take half a second for one item, and the worker along the first time."""
    if x == 40 and once(f"{root}/40"):
        time.sleep(0.5)
        os._exit(3)
    return x


@pytest.mark.parametrize("n_workers", [2, 3])
def test_nobody_runs_far_ahead_of_an_ordered_stream(n_workers: int, folder: Path, mailbox: Mailbox) -> None:
    """While the first item takes its time, the other workers do a bounded number of runs, and then wait."""
    set_parallel({**TWO, "n_workers": n_workers})
    os.mkfifo(folder / "gate")
    data = Counted()
    results = parallel_for(first_waits, data, ordered=True, root=str(folder))
    pulled = []

    def watch() -> None:
        mailbox.take()  # the first item runs
        last = -1
        while last != data.pulled:  # until nothing more is pulled
            last = data.pulled
            time.sleep(0.5)
        pulled.append(last)
        (folder / "gate").write_text("go")

    with acting(watch):
        assert [next(results) for _ in range(200)] == list(range(200))
    # 32 runs wait for the first, two are with each worker; a run is 50 ms of work, so at most ten items
    assert pulled[0] <= (32 + 2 * n_workers) * 11
    results.close()


def first_waits(x: int, root: str) -> int:
    """Wait at the first item until it is let go, and work 5 ms at all others."""
    if x == 0:
        tell(f"{root}/mail")
        Path(root, "gate").read_text()
    time.sleep(0.005)
    return x

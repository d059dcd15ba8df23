"""`item_timeout`: an item that hangs is given up with its worker, by name, and the run goes on."""

import os
from pathlib import Path
from typing import Any

from espnet3.parallel import ItemFailure, get_client, parallel_map
from espnet3.parallel.engine.loop import Call, Loop, on_a_worker, run_items
from espnet3.parallel.records import Policy
from tests.parallel.faults.items import (
    AT,
    LIMIT,
    N,
    half_the_limit,
    hangs,
    hangs_in_batches,
    hangs_once,
    holds_the_lock,
    tenth_or_hang,
)
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import PATIENCE, TWO, workers_of
from tests.parallel.pilots.as_tasks import have_tasks
from tests.waiting import wait_until


def timed(**options: Any) -> Policy:
    return Policy("record", item_timeout=LIMIT, **options)


def check(results: list[Any], *bad: int, attempts: int = 1) -> list[ItemFailure]:
    """Assert that just these items were given up, and every other has its result."""
    assert [r for i, r in enumerate(results) if i not in bad] == [
        i for i in range(len(results)) if i not in bad
    ]
    found = failures(results)
    assert [(f.index, f.cause, f.error_type, f.attempts) for f in found] == [
        (i, "timeout", "TimeoutError", attempts) for i in bad
    ]
    assert all(f"{LIMIT:g} s" in f.message and f"worker {f.worker}" in f.message for f in found)
    return found


def test_a_hanging_item_is_named_and_the_run_goes_on(client: Any) -> None:
    """999 results, one timeout with its place; no item is tried twice, and the worker that is lost is replaced."""
    parallel_map(abs, range(10), client=client)
    before = len(workers_of())
    results, tally, retries = run(hangs, range(N), timed(), client)
    (failure,) = check(results, AT)
    assert "in hangs" in failure.traceback and "time.sleep(1000)" in failure.traceback
    assert (tally.deaths, retries) == (1, 0)
    # there is no event for a replacement, and to look more often would keep it from coming
    wait_until(lambda: len(workers_of()) == before, PATIENCE, every=0.2)
    assert parallel_map(abs, range(1000), client=client) == list(range(1000))


def test_several_hanging_items(client: Any) -> None:
    """Each of several hanging items of a seeded run is named, also where no other is left."""
    results, tally, _ = run(hangs, range(3), timed(seed=0), client, at=(0, 1, 2))
    check(results, 0, 1, 2)
    assert tally.deaths == 3


def test_it_is_tried_again_as_often_as_an_error(client: Any) -> None:
    """`max_retries` holds for hanging items too, and the failure says how often it was tried."""
    results, tally, retries = run(hangs, range(N), timed(max_retries=2), client)
    check(results, AT, attempts=3)
    assert (tally.deaths, retries) == (3, 2)


def test_an_item_that_hangs_once(client: Any, folder: Path) -> None:
    """With a retry, an item that hangs only the first time has its result, and counts one retry."""
    results, tally, retries = run(hangs_once, range(N), timed(max_retries=1), client, root=str(folder))
    assert results == list(range(N))
    assert (tally.deaths, retries) == (1, 1)


def test_in_a_batch(client: Any) -> None:
    """Of a batch that hangs, the items go again one by one, and only the guilty one is given up."""
    results, tally, _ = run(hangs, range(N), timed(batch_size=16), client, many=hangs_in_batches)
    check(results, AT)
    assert tally.deaths == 2


def test_an_item_that_lets_no_other_thread_run(client: Any) -> None:
    """An item that hangs in C, holding the interpreter's lock, is given up too, by the driver."""
    results, _, _ = run(holds_the_lock, range(N), timed(), client)
    check(results, AT)


def test_items_that_take_less_are_left_alone(client: Any) -> None:
    """Items below the limit are not given up, though the step they were put into takes far longer."""
    results, tally, _ = run(half_the_limit, range(N), timed(), client)
    assert results == list(range(N))
    assert tally.deaths == 0


def test_a_neighbour_in_the_same_process_pays_nothing() -> None:
    """With two threads in a process, the other thread's item is run again and not suspected."""
    with get_client({"env": "local", "n_workers": 2, "options": {"threads_per_worker": 2}}) as own:
        policy = Policy("record", item_timeout=LIMIT, poison_after=1)
        results, _, _ = run(tenth_or_hang, range(40), policy, own)
        check(results, 17)


def test_beside_workers_that_are_threads_of_this_process() -> None:
    """Items run in processes of their own there, too: the one that hangs is ended, and nothing of this process."""
    with get_client({**TWO, "options": {"processes": False}}) as own:
        results, tally, _ = run(hangs, range(N), timed(), own)
        check(results, AT)
        assert tally.deaths == 1 and own.submit(os.getpid).result() == os.getpid()


def test_where_chunks_are_tasks() -> None:
    """Where chunks travel as Dask tasks, the item is named, and the thread it hangs in left behind."""
    with get_client(TWO) as own:
        have_tasks(own)
        results, tally, retries = run(hangs, range(N), timed(max_retries=1), own)
        check(results, AT, attempts=2)
        assert (tally.deaths, retries) == (0, 1)


def test_the_watch_costs_no_steps() -> None:
    """With a limit, quick items are as many to a step as without: the clock is not read for each."""

    def steps(limit: float | None) -> int:
        seen: list[int] = []
        policy, note = Policy(item_timeout=limit), lambda at, n: seen.append(n)
        with on_a_worker(lambda late: None):
            block = run_items(Loop(range(100_000), Call(abs), policy, "w", enter=note))
        assert block.values == list(range(100_000))
        return len(seen)

    # a moment without the processor shortens the steps of either: one undisturbed pair is enough
    wait_until(lambda: steps(600.0) <= steps(None) + 5)

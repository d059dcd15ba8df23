"""Runs that are given up in a client that goes on, and clients that are closed: the next call is not held up."""

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from espnet3.parallel import (
    ConfigError,
    ItemError,
    NoWorkersError,
    WorkerSetupError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    set_parallel,
)
from tests.parallel.faults.items import WaitsOrRaises, slow_or_broken_env, waits_after_0
from tests.parallel.faults.watching import PATIENCE, TWO, Mailbox, acting, nothing_left, workers_of
from tests.parallel.faults.workloads import Provider, sleeps_for_long
from tests.waiting import wait_until


@pytest.fixture
def gate(folder: Path) -> Path:
    """Return the folder, with a pipe at which one item waits for the other."""
    os.mkfifo(folder / "gate")
    return folder


def answering(client: Any) -> list[int]:
    """Return the processes of the workers that answer; one that was killed may be listed for a moment."""
    return list(client.run(os.getpid, on_error="ignore").values())


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with get_client(TWO) as client:
        parallel_map(abs, range(100))
        yield client


@pytest.fixture
def client(two: Any) -> Iterator[Any]:
    """Assert that the workers are of use after the test, both of them."""
    yield two
    assert parallel_map(abs, range(10)) == list(range(10))
    # there is no event for a replacement, and to look more often would keep it from coming
    wait_until(lambda: len(answering(two)) >= 2, PATIENCE, every=0.2)
    assert len(answering(two)) == 2


def both_in_long_items(folder: Path, mailbox: Mailbox) -> Iterator[int]:
    """Return a stream that has given one result, with both workers in an item of 1000 s."""
    results = parallel_for(waits_after_0, itertools.count(), root=str(folder))
    next(results)
    mailbox.take(2)
    return results


def test_a_stream_on_processes_of_its_own_that_is_closed(gate: Path, mailbox: Mailbox) -> None:
    """Closing it does not wait for items that take long, where no client is open either."""
    set_parallel(TWO)
    with nothing_left():
        both_in_long_items(gate, mailbox).close()


@pytest.mark.usefixtures("client")
def test_a_stream_that_is_closed(gate: Path, mailbox: Mailbox) -> None:
    """Closing a stream whose items take long frees the workers at once for the next call."""
    both_in_long_items(gate, mailbox).close()


@pytest.mark.usefixtures("client")
def test_a_runner_that_stops_at_an_error(gate: Path) -> None:
    """A runner that stops at an `ItemError` leaves no long item in the way."""
    runner = WaitsOrRaises(Provider({"root": str(gate)}), progress=False)
    with pytest.raises(ItemError):
        runner([0, 1])


@pytest.mark.usefixtures("client")
def test_ctrl_c_that_is_caught(folder: Path, mailbox: Mailbox) -> None:
    """After a Ctrl-C that the caller catches, in the middle of long items, the client is of use."""

    def interrupt() -> None:
        mailbox.take(2)
        os.kill(os.getpid(), signal.SIGINT)

    with acting(interrupt), pytest.raises(KeyboardInterrupt):
        parallel_map(sleeps_for_long, range(10), root=str(folder))


@pytest.mark.usefixtures("client")
def test_an_env_that_takes_long(gate: Path) -> None:
    """A worker that is still building an env when the run has failed on another does not stand in the way."""
    with pytest.raises(WorkerSetupError, match="no such model"):
        parallel_map(abs, range(10), setup_fn=slow_or_broken_env(str(gate)))


@pytest.mark.usefixtures("client")
def test_quick_items_cost_no_worker() -> None:
    """A stream of quick items that is closed early loses no worker: they end by themselves."""
    before = {p.pid for p in workers_of()}
    for _ in range(5):
        results = parallel_for(abs, itertools.count())
        next(results)
        results.close()
    assert {p.pid for p in workers_of()} == before


@pytest.mark.usefixtures("client")
def test_another_run_on_the_same_workers_goes_on(folder: Path, mailbox: Mailbox) -> None:
    """A run given up in one thread does not cost the run of another thread anything."""
    stop = threading.Event()
    rounds: list[list[int]] = []

    def beside() -> None:
        while not stop.is_set():
            rounds.append(parallel_map(abs, range(200)))

    with acting(beside):
        for _ in range(5):
            results = parallel_for(abs, itertools.count())
            next(results)
            results.close()
        stop.set()
    assert rounds and all(r == list(range(200)) for r in rounds)


# --- clients that are closed ----------------------------------------------------------------------

Opens = Callable[[], Any]
ENDS = "the Dask client is closed"


def ours() -> Any:
    return get_client(TWO)


def users() -> Any:
    return Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0")


@pytest.mark.parametrize("opens", [ours, users])
def test_a_closed_client_is_refused(opens: Opens) -> None:
    """What is read of a stream after its client was closed, and each later call on it, says that it is closed."""
    with opens() as client:
        results = parallel_for(abs, iter(range(10**9)), client=client)
        assert next(results) >= 0
    with pytest.raises(NoWorkersError, match=ENDS):
        for _ in results:
            pass
    for call in (
        lambda: parallel_map(abs, [-1], client=client),
        lambda: next(parallel_for(abs, [-1], client=client)),
        lambda: parallel_submit(abs, -1, client=client),
    ):
        with pytest.raises(NoWorkersError, match=ENDS):
            call()


def test_an_asynchronous_client_works_in_a_thread() -> None:
    """A call that would keep its client's event loop from running is refused, and works in a thread."""

    async def both() -> Any:
        async with Client(
            n_workers=1, processes=False, dashboard_address="127.0.0.1:0", asynchronous=True
        ) as client:
            with pytest.raises(ConfigError, match="make it in a thread"):
                parallel_map(abs, [-1], client=client)
            return await asyncio.to_thread(parallel_map, abs, [-1], client=client)

    assert asyncio.run(both()) == [1]


def test_a_client_closed_in_mid_run_ends_the_run(folder: Path, mailbox: Mailbox) -> None:
    """A run whose client another thread closes ends with that, and does not wait for workers to come."""
    with get_client({"env": "local", "n_workers": 2, "start_timeout": 3600}) as client:

        def close() -> None:
            mailbox.take(2)
            client.close()

        with acting(close), pytest.raises(NoWorkersError, match=ENDS):
            parallel_map(sleeps_for_long, range(10), client=client, root=folder)

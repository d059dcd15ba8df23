"""A cluster of the user's own: whatever breaks in its workers, none of them is ended by this package."""

import itertools
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import parallel_for, parallel_map, set_parallel
from espnet3.parallel.pilots.dask.pools import pool_of
from espnet3.parallel.records import Policy
from tests.habits import rows
from tests.parallel.faults.items import AT, N, crash, hangs, tells_and_sleeps
from tests.parallel.faults.mischief import breaks_the_pilot, closes_the_channel, mends_the_pilot
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import Mailbox
from tests.parallel.faults.workloads import freezes, pid_of
from tests.waiting import wait_until


@contextmanager
def users_client(processes: bool = True) -> Iterator[Any]:
    """Open a LocalCluster with two workers, and a client of it."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=processes,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(params=rows(["processes", "threads"], ("processes",)), scope="module")
def users_cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client for the tests of this module that may share its workers."""
    with users_client(request.param == "processes") as client:
        yield client


@pytest.fixture
def of_processes(users_cluster: Any) -> Any:
    """The client, where its workers can die."""
    if os.getpid() in workers(users_cluster).values():
        pytest.skip("a thread cannot be killed")
    # one that was killed may be listed for a moment, and to look more often would keep its successor from coming
    wait_until(lambda: len(workers(users_cluster)) == 2, every=0.2)
    return users_cluster


def workers(client: Any) -> dict[str, int]:
    found: dict[str, int] = client.run(os.getpid, on_error="ignore")
    return found


def test_a_slot_that_breaks_opens_again(
    users_cluster: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An item that damages what runs the next chunk loses no result and no worker, and its slots serve on."""
    before = workers(users_cluster)
    for name in ("once", "twice"):
        results = parallel_map(
            breaks_the_pilot,
            range(2000),
            client=users_cluster,
            at=100,
            where=str(folder / name),
            always=False,
        )
        assert results == list(range(2000))
        users_cluster.run(mends_the_pilot)  # the next run's damage is to be its only one
    assert workers(users_cluster) == before
    assert "an item has damaged this process" in caplog.text
    assert set(parallel_map(pid_of, range(2000), client=users_cluster)) <= set(before.values())


def test_a_slot_whose_channel_breaks_opens_again(users_cluster: Any, folder: Path) -> None:
    """An item that closes the package's own connections, even on all workers, costs no worker and no wait."""
    before = workers(users_cluster)
    for at in range(4):
        results = parallel_map(
            closes_the_channel, range(2000), client=users_cluster, at=at * 400, where=str(folder / str(at))
        )
        assert results == list(range(2000))
    assert workers(users_cluster) == before


def test_a_frozen_worker_is_left_alone(of_processes: Any, folder: Path, mailbox: Mailbox) -> None:
    """A frozen worker loses its items to the others, is not ended, and comes back."""
    set_parallel({"env": "local", "frozen_timeout": 3.0})
    before = workers(of_processes)
    mail, marker = str(folder / "mail"), str(folder / "once")
    results = parallel_map(freezes, range(200), client=of_processes, at=70, mail=mail, marker=marker)
    assert results == list(range(200))
    pid = int(mailbox.take()[0])
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    os.kill(pid, signal.SIGCONT)
    assert workers(of_processes) == before


def test_workers_in_long_items_are_not_killed(of_processes: Any, folder: Path, mailbox: Mailbox) -> None:
    """A stream that is closed in the middle of items waits for them on workers that are not ours to kill."""
    before = workers(of_processes)
    results = parallel_for(tells_and_sleeps, itertools.count(), client=of_processes, root=str(folder))
    thread = threading.Thread(target=lambda: next(results))
    thread.start()
    mailbox.take(3)  # one is done, the next one runs
    thread.join()
    results.close()
    assert workers(of_processes) == before
    assert parallel_map(abs, range(10), client=of_processes) == list(range(10))


def test_a_late_items_worker_is_replaced(of_processes: Any) -> None:
    """With `item_timeout` the nanny replaces the worker that was given up."""
    set_parallel({"env": "local", "start_timeout": 600})
    results, tally, _ = run(hangs, range(N), Policy("record", item_timeout=2.0), of_processes)
    (failure,) = failures(results)
    assert (failure.index, failure.cause, tally.deaths) == (AT, "timeout", 1)
    assert len(results) == N
    wait_until(lambda: len(workers(of_processes)) == 2, every=0.2)


def test_the_item_in_progress_is_known() -> None:
    """What a worker was running when it died is known, and is all that is lost."""
    set_parallel({"env": "local", "start_timeout": 600})  # workers are restarted, which may take a while
    with users_client() as client:  # no worker of it has died before
        parallel_map(abs, range(100), client=client)
        assert all(slot.mark is not None for slot in pool_of(client)._idle)
        policy = Policy("record", poison_after=1)
        # long items: each is a step of its own, so that no other one is in progress beside it
        results, tally, retries = run(crash, range(40), policy, client, at=(17,), pause=0.02)
    (failure,) = failures(results)
    # how a nanny's worker ended is not known here, and one death may be somebody else's doing
    assert (failure.index, failure.cause, failure.attempts) == (17, "poison", 2)
    assert tally.deaths == 2 and retries == 0

"""A cluster of the user's own: whatever breaks in items, none of its workers is ended by this package."""

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import parallel_for, parallel_map, set_parallel
from tests.habits import rows
from tests.parallel.faults.items import tells_and_sleeps
from tests.parallel.faults.mischief import breaks_the_pilot, closes_the_channel, mends_the_pilot
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
    # a process beside Dask's is replaced, a thread of this one has to go on
    here = os.getpid() in before.values()
    assert ("an item has damaged this process" in caplog.text) == here
    assert (set(parallel_map(pid_of, range(2000), client=users_cluster)) == {os.getpid()}) == here


def test_a_slot_whose_channel_breaks_opens_again(users_cluster: Any, folder: Path) -> None:
    """An item that closes the package's own connections, even on all workers, costs no worker and no wait."""
    before = workers(users_cluster)
    for at in range(4):
        results = parallel_map(
            closes_the_channel, range(2000), client=users_cluster, at=at * 400, where=str(folder / str(at))
        )
        assert results == list(range(2000))
    assert workers(users_cluster) == before


def test_a_frozen_process_is_replaced(of_processes: Any, folder: Path, mailbox: Mailbox) -> None:
    """A frozen process loses its items to the others and is ended; Dask's worker beside it stays."""
    set_parallel({"env": "local", "frozen_timeout": 3.0})
    before = workers(of_processes)
    mail, marker = str(folder / "mail"), str(folder / "once")
    results = parallel_map(freezes, range(200), client=of_processes, at=70, mail=mail, marker=marker)
    assert results == list(range(200))
    pid = int(mailbox.take()[0])
    wait_until(lambda: not psutil.pid_exists(pid), every=0.2)
    assert workers(of_processes) == before


def test_workers_outlive_long_items(of_processes: Any, folder: Path, mailbox: Mailbox) -> None:
    """A stream that is closed in the middle of items does not wait for them, and costs no worker of Dask's."""
    before = workers(of_processes)
    results = parallel_for(tells_and_sleeps, itertools.count(), client=of_processes, root=str(folder))
    thread = threading.Thread(target=lambda: next(results))
    thread.start()
    mailbox.take(3)  # one is done, the next one runs
    thread.join()
    results.close()
    assert workers(of_processes) == before
    assert parallel_map(abs, range(10), client=of_processes) == list(range(10))

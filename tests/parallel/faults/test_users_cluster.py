"""A cluster of the user's own: whatever breaks in its workers, none of them is ended by this package."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import parallel_map
from tests.parallel.faults.mischief import breaks_the_pilot, closes_the_channel, mends_the_pilot
from tests.parallel.faults.workloads import pid_of


@pytest.fixture(params=["processes", "threads"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of a LocalCluster with two workers."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=request.param == "processes",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def workers(client: Any) -> dict[str, int]:
    """Return the pid of each worker."""
    found: dict[str, int] = client.run(lambda: __import__("os").getpid())
    return found


def test_a_slot_that_breaks_opens_again(client: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An item that damages what runs the next chunk loses no result and no worker, and its slots serve on."""
    before = workers(client)
    for name in ("once", "twice"):
        results = parallel_map(
            breaks_the_pilot, range(2000), client=client, at=100, where=str(folder / name), always=False
        )
        assert results == list(range(2000))
        client.run(mends_the_pilot)  # the next run's damage is to be its only one
    assert workers(client) == before
    assert "an item has damaged this process" in caplog.text
    assert set(parallel_map(pid_of, range(2000), client=client)) <= set(before.values())


def test_a_slot_whose_channel_breaks_opens_again(client: Any, folder: Path) -> None:
    """An item that closes the package's own connections, even on all workers, costs no worker and no wait."""
    before = workers(client)
    for at in range(4):
        results = parallel_map(
            closes_the_channel, range(2000), client=client, at=at * 400, where=str(folder / str(at))
        )
        assert results == list(range(2000))
    assert workers(client) == before

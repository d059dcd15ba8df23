"""A client that is closed: who still uses it hears so at once, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import NoWorkersError, get_client, parallel_for, parallel_map, parallel_submit
from tests.parallel.faults.watching import Mailbox, acting
from tests.parallel.faults.workloads import sleeps_for_long

Opens = Callable[[], Any]
ENDS = "the Dask client is closed"


@contextmanager
def ours() -> Iterator[Any]:
    """Open a client of `get_client`."""
    with get_client({"env": "local", "n_workers": 2}) as client:
        yield client


@contextmanager
def users() -> Iterator[Any]:
    """Open a client of the user's own."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


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


def test_a_client_closed_in_mid_run_ends_the_run(folder: Path, mailbox: Mailbox) -> None:
    """A run whose client another thread closes ends with that, and does not wait for workers to come."""
    with get_client({"env": "local", "n_workers": 2, "start_timeout": 3600}) as client:

        def close() -> None:
            mailbox.take(2)
            client.close()

        with acting(close), pytest.raises(NoWorkersError, match=ENDS):
            parallel_map(sleeps_for_long, range(10), client=client, root=folder)

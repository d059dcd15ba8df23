"""One supervisor under workers with slots alone and workers of Dask: it starts, replaces and ends them."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from espnet3.parallel import get_client, parallel_map, set_parallel
from espnet3.parallel.local.dask.cluster import ForkedCluster
from tests.parallel.local.items import dies_once
from tests.waiting import wait_until

DASK = {"env": "local", "n_workers": 2, "options": {"dashboard_address": "127.0.0.1:0", "processes": None}}


def cluster_of(client: Any) -> ForkedCluster:
    assert isinstance(client.cluster, ForkedCluster)
    return client.cluster


def test_a_cluster_that_shrinks_and_grows_keeps_no_worker_that_is_gone() -> None:
    """What Dask has closed leaves the supervisor, and its process ends; new workers are under it like the first."""
    with get_client(DASK) as client:
        watching = cluster_of(client).supervisor
        for n in (1, 3, 2):
            before = {worker.pid for worker in watching.workers}
            client.cluster.scale(n)
            client.wait_for_workers(n)
            wait_until(lambda n=n: len(watching.workers) == n)  # type: ignore[misc]  # the n of now
            for pid in before - {worker.pid for worker in watching.workers}:
                wait_until(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]  # the pid of now
        assert parallel_map(abs, range(100)) == list(range(100))


@pytest.mark.parametrize("way", ["own processes", "a client"])
def test_many_deaths_one_after_the_other_give_up_no_worker(way: str, tmp_path: Path) -> None:
    """Workers are replaced however often items end them, and however soon: here sixty times."""
    set_parallel({"env": "local", "n_workers": 2})
    with get_client(DASK) if way == "a client" else nullcontext() as client:
        assert parallel_map(dies_once, range(60), folder=str(tmp_path)) == list(range(60))
        assert client is None or cluster_of(client).given_up() is None
        assert client is None or not any(each.given_up for each in cluster_of(client).supervisor.workers)
    assert len(list(tmp_path.iterdir())) == 60

"""Jobs of workers are watched, replaced and cancelled, each by itself, and follow the work."""

import itertools
import shlex
import subprocess
import time
from contextlib import closing

import pytest

from espnet3.parallel import get_client, parallel_for, parallel_map
from espnet3.parallel.clusters import keeper
from tests.habits import rows
from tests.standins import standin
from tests.standins.place import block
from tests.waiting import wait_until

STANDINS = ["pbs", "lsf", "moab", "htcondor"]


def slow(item: int) -> int:
    time.sleep(0.1)
    return item


@pytest.mark.parametrize("env", rows(STANDINS, ("lsf",)))
def test_each_worker_is_replaced_by_itself(env: str) -> None:
    """Three jobs have names of their own; where there is work, another takes the place of one that is cancelled."""
    with standin(env) as queue:
        with get_client(block(env, 3)) as client:
            client.wait_for_workers(3, timeout=600)
            names = {each["name"] for each in client.scheduler_info(n_workers=-1)["workers"].values()}
            assert len(names) == 3
            _, job, _ = client.cluster.workers.values()
            subprocess.run([*shlex.split(job.cancel_command), job.job_id], check=True)
            with closing(parallel_for(slow, itertools.count())) as results:
                wait_until(
                    lambda: next(results) >= 0 and len(queue.jobs()) == 4
                )  # without work none takes its place
            client.wait_for_workers(3, timeout=600)
            assert len(queue.unfinished()) == 3
        wait_until(lambda: not queue.unfinished())
        assert len(queue.jobs()) == 4


def test_a_cluster_grows_and_shrinks_as_it_is_told() -> None:
    """Without any work `scale` of Dask's cluster submits the jobs that are missing, and cancels those beyond."""
    with standin("pbs") as queue, get_client(block("pbs", 1)) as client:
        for n in (3, 1):
            client.cluster.scale(n)
            client.wait_for_workers(n, timeout=600)
            wait_until(lambda n=n: len(queue.unfinished()) == n)  # type: ignore[misc]  # the n of now
        assert parallel_map(abs, [-1]) == [1]


def test_the_number_of_workers_follows_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without work there is no job; with work there are as many as allowed; then none, until there is work again."""
    monkeypatch.setattr(keeper, "_IDLE", 1.0)
    with standin("pbs") as queue:
        with get_client({**block("pbs", 1), "adapt": {"minimum": 0, "maximum": 3}}):
            assert queue.jobs() == []
            with closing(parallel_for(slow, itertools.count())) as results:
                wait_until(lambda: next(results) >= 0 and len(queue.unfinished()) == 3)
            wait_until(lambda: not queue.unfinished(), every=0.1)
            assert parallel_map(abs, range(-10, 0)) == list(range(10, 0, -1))
        wait_until(lambda: not queue.unfinished())

"""Chunks as Dask tasks, where workers cannot connect to the driver."""

import os
import signal
import time

import pytest

from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    ItemFailure,
    WorkerSetupError,
    get_client,
    parallel_map,
)
from espnet3.parallel.pilots.dask.pools import ClientSlots, PilotHost
from espnet3.parallel.pilots.pool import SlotClaim
from tests.parallel.pilots.as_tasks import have_tasks


class Provider(EnvironmentProvider):
    def build_env_local(self):
        if self.config == "broken":
            raise OSError("no such model")
        return {"k": 3}


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, k):
        if idx == -1:
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)  # the signal may land late
        if idx == -2:
            raise ValueError("no")
        return idx * k


@pytest.fixture(scope="module")
def client():
    """A client whose pilots are switched off."""
    with get_client({"env": "local", "n_workers": 2}) as client:
        have_tasks(client)
        yield client


def are_tasks(client):
    claim = SlotClaim(ClientSlots(client).pool)
    try:
        return {slot.hello.pid for slot in claim.collect()} == {0}
    finally:
        claim.close()


def test_tasks_give_the_answer_of_pilots(client):
    """A runner's results are the same when its chunks travel as tasks."""
    assert Runner(Provider({}), progress=False)(range(5000)) == [3 * i for i in range(5000)]
    assert parallel_map(lambda x: x + 1, list(range(100)), client=client) == list(range(1, 101))
    assert are_tasks(client)


def test_a_crash_is_told_from_an_exception_among_tasks(client):
    """The item that kills its worker is named as poison, one that raises as an error, others finish."""
    indices = [*range(50), -1, *range(50, 100), -2]
    results = Runner(Provider({}), progress=False, on_error="record")(indices)
    failures = {r.index: r.cause for r in results if isinstance(r, ItemFailure)}
    assert failures == {-1: "poison", -2: "error"}
    assert [r for r in results if not isinstance(r, ItemFailure)] == [3 * i for i in range(100)]


def test_a_broken_env_reaches_the_driver_from_a_task(client):
    """A provider that raises is a WorkerSetupError with the worker's traceback."""
    with pytest.raises(WorkerSetupError, match="no such model"):
        Runner(Provider("broken"), progress=False)(range(10))


def test_workers_that_cannot_connect_are_served_by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no worker can open a connection to the driver, the run falls back to tasks by itself."""
    from distributed import Client, LocalCluster

    host = PilotHost.__init__
    monkeypatch.setattr(
        PilotHost, "__init__", lambda self, address, *rest: host(self, "/nowhere/pool", *rest)
    )
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        assert parallel_map(abs, range(-100, 0), client=client) == list(range(100, 0, -1))
        assert are_tasks(client)

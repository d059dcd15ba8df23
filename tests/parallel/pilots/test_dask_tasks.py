"""Chunks as Dask tasks, where workers cannot connect to the driver."""

from __future__ import annotations

import os
import pickle
import signal
import time
from types import SimpleNamespace

import pytest

from espnet3.parallel import (
    BaseRunner,
    EnvironmentProvider,
    ItemFailure,
    WorkerSetupError,
    get_client,
    parallel_map,
)
from espnet3.parallel.pilots.dask.pools import pool_of, replace_pool
from espnet3.parallel.pilots.dask.tasks import TaskChannel, TaskPool
from tests.habits import rows


class Provider(EnvironmentProvider):
    """An env of one entry."""

    def build_env_local(self):
        if self.config == "broken":
            raise OSError("no such model")
        return {"k": 3}


class Runner(BaseRunner):
    """Multiplies; one item may crash."""

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
        replace_pool(client, TaskPool(client, "tasks"))
        yield client


def test_tasks_give_the_answer_of_pilots(client):
    """A runner's results are the same when its chunks travel as tasks."""
    assert Runner(Provider({}), progress=False)(range(5000)) == [3 * i for i in range(5000)]
    assert parallel_map(lambda x: x + 1, list(range(100)), client=client) == list(range(1, 101))
    assert isinstance(pool_of(client), TaskPool)


def test_a_crash_is_told_from_an_exception_among_tasks(client):
    """The item that kills its worker is named as poison, one that raises as an error, others finish."""
    indices = [*range(50), -1, *range(50, 100), -2]
    results = Runner(Provider({}), progress=False, on_error="record")(indices)
    failures = {r.index: r.cause for r in results if isinstance(r, ItemFailure)}
    assert failures == {-1: "poison", -2: "error"}
    assert [r for r in results if not isinstance(r, ItemFailure)] == [3 * i for i in range(100)]


class Promise:
    """A future of Dask's whose result may be lost with its worker, and computed again."""

    def __init__(self, key):
        self.key = key
        self._value = None
        self._asking = []

    def add_done_callback(self, called):
        self._asking.append(called)

    def done(self):
        return self._value is not None

    def result(self):
        return self._value

    def finish(self, value):
        """Have a result; the callbacks come from another thread, a while later: `call`."""
        self._value = value

    def lose(self):
        self._value = None

    def call(self):
        """Call back once whoever has asked."""
        asking, self._asking = self._asking, []
        for called in asking:
            called(self)


@pytest.mark.parametrize("lost", rows([0, 1], (1,)))
def test_a_result_that_is_lost_before_it_is_fetched_arrives_when_it_was_computed_again(lost):
    """Dask has called back already: the channel asks again, for the next in turn and for one behind it."""
    futures = [Promise("a"), Promise("b")]
    left = iter(futures)
    pool = SimpleNamespace(name="tasks", client=SimpleNamespace(submit=lambda *_, **__: next(left)))
    channel = TaskChannel(pool)
    try:
        for _ in futures:
            chunk = pickle.dumps(("items", 1, [0], None, None, None, 1.0))
            channel.send_parts(SimpleNamespace(parts=[chunk]), [])
        futures[lost].finish("too early")
        if lost == 0:
            futures[lost].lose()
        futures[lost].call()
        futures[lost].lose()
        for future, value in zip(futures, ["first", "second"], strict=True):
            future.finish(value)
            future.call()
        assert [channel.recv(), channel.recv()] == ["first", "second"]
    finally:
        channel.close()


def test_a_broken_env_reaches_the_driver_from_a_task(client):
    """A provider that raises is a WorkerSetupError with the worker's traceback."""
    with pytest.raises(WorkerSetupError, match="no such model"):
        Runner(Provider("broken"), progress=False)(range(10))


def test_workers_that_cannot_connect_are_served_by_tasks(tmp_path):
    """When no worker can open a connection to the driver, the run falls back to tasks by itself."""
    from distributed import Client, LocalCluster

    preload = tmp_path / "firewall.py"
    preload.write_text(
        "import sys\n"
        "def wall(event, args):\n"
        "    if event == 'socket.connect' and isinstance(args[1], str):\n"
        "        raise ConnectionRefusedError('a firewall')\n"
        "sys.addaudithook(wall)\n"
    )
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, preload=[str(preload)], dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert parallel_map(abs, range(-100, 0), client=client) == list(range(100, 0, -1))
        assert isinstance(pool_of(client), TaskPool)

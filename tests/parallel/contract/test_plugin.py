"""`DictReturnWorkerPlugin` and `wrap_func_with_worker_env` with a Dask client of the user's own."""

import threading

import distributed
import pytest

from espnet3.parallel import (
    DictReturnWorkerPlugin,
    WorkerSetupError,
    parallel_for,
    parallel_map,
    parallel_submit,
    wrap_func_with_worker_env,
)
from tests.habits import rows
from tests.parallel.contract import work
from tests.parallel.contract.helpers import lines


@pytest.fixture(scope="module", params=rows([True, False], [False]), ids=["processes", "threads"])
def client(request):
    """Dask's own cluster of two workers."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.Client(processes=request.param, **options) as client:
        yield client


@pytest.fixture
def register(client):
    """Register plugins, and take them away after the test."""
    names = []

    def register(setup_fn):
        names.append(f"env-{len(names)}")
        client.register_plugin(DictReturnWorkerPlugin(setup_fn), name=names[-1])

    yield register
    for name in names:
        client.unregister_worker_plugin(name)


def test_the_env_is_there_for_wrapped_functions_and_ours(client, register, tmp_path):
    """After register_plugin, wrapped functions of client.map and the functions of this package see the env."""

    def setup():
        work.log(tmp_path, work.pid(0))
        return {"y": 100}

    register(setup)
    assert len(set(lines(tmp_path))) == len(lines(tmp_path)) >= 1  # once a process, at once
    assert client.gather(client.map(wrap_func_with_worker_env(work.plus), range(3))) == [100, 101, 102]
    assert client.submit(wrap_func_with_worker_env(work.plus), 1).result() == 101
    assert parallel_map(work.plus, range(3), client=client) == [100, 101, 102]
    assert sorted(parallel_for(work.plus, range(3), client=client)) == [100, 101, 102]
    assert parallel_submit(work.plus, 1, client=client).result() == 101
    assert client.submit(work.plus, 1).result() == 2  # not wrapped: Dask's own call
    assert len(set(lines(tmp_path))) == len(lines(tmp_path))


def test_the_plugin_registered_last_counts_until_it_is_taken_away(client):
    """A second plugin's env takes the place of the first one's, which is back when it is unregistered."""
    call = wrap_func_with_worker_env(work.plus)
    for name, y in (("one", 100), ("two", 200)):
        client.register_plugin(DictReturnWorkerPlugin(lambda y=y: {"y": y}), name=name)
    assert client.submit(call, 0, pure=False).result() == 200
    client.unregister_worker_plugin("two")
    assert client.submit(call, 0, pure=False).result() == 100
    client.unregister_worker_plugin("one")
    assert client.submit(call, 0, pure=False).result() == 1


@pytest.mark.parametrize("setup", [lambda: None, lambda: {1: 2}], ids=["None", "keys"])
def test_a_setup_that_returns_no_dict_is_a_value_error(client, register, setup):
    """Registering a plugin whose setup_fn returns no dict of names is a ValueError that says what it returned."""
    with pytest.raises(ValueError, match=r"must return a dict|keys must be strings"):
        register(setup)
    assert client.submit(wrap_func_with_worker_env(work.plus), 1, pure=False).result() == 2


def test_a_setup_that_raises_is_a_setup_error(client, register):
    """Registering a plugin whose setup_fn raises is a WorkerSetupError with the worker's traceback."""

    def setup():
        raise LookupError(threading.Lock())

    with pytest.raises(WorkerSetupError, match="in setup"):
        register(setup)

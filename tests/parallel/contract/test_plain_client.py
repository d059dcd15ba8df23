"""The client that `get_client` yields is a Dask client in every habit, with the worker env in its calls."""

import asyncio
import functools
import threading
import urllib.error
import urllib.request
from importlib.util import find_spec

import distributed
import pytest
from distributed import get_worker

from espnet3.parallel import (
    DictReturnWorkerPlugin,
    SignatureError,
    WorkerSetupError,
    get_client,
    parallel_for,
    parallel_map,
    parallel_submit,
    wrap_func_with_worker_env,
)
from espnet3.parallel.clusters import client as client_module
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, finish, lines, start_script


@pytest.fixture(scope="module")
def client():
    with get_client(TWO, setup_fn=lambda: {"y": 100}) as client:
        yield client


def note_of(error):
    return "\n".join(getattr(error, "__notes__", []))


async def plus_later(x, y=1):
    await asyncio.sleep(0)
    return x + y


class Counter:
    """An actor: it counts, from what the env gives."""

    def __init__(self, y):
        self.n = y

    def add(self):
        self.n += 1
        return self.n


def where():
    return get_worker().address


# --- the env, whatever is called ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (work.plus, "plus"),
        (functools.partial(work.plus), "plus"),
        (lambda x, y: x + y, "lambda"),
        (work.AddEnv(), "AddEnv"),
    ],
    ids=["function", "partial", "lambda", "object"],
)
def test_the_env_reaches_any_callable(client, func, name):
    """map and submit inject the env into any kind of callable, and the task is named after it."""
    future = client.submit(func, 5)
    assert future.result() == 105
    assert name in future.key and "EnvCall" not in future.key
    assert client.gather(client.map(func, range(3))) == [100, 101, 102]


def test_a_coroutine_function_gets_no_env(client):
    """Dask awaits coroutine functions where there is no env; where there is one they are refused."""
    with get_client(TWO) as plain:
        assert plain.submit(plus_later, 1).result() == 2
    for call in client.submit, client.map, parallel_submit, wrap_func_with_worker_env:
        with pytest.raises(SignatureError, match=r"plus_later is a coroutine function.* has no env"):
            call(plus_later)


def test_the_env_reaches_an_actor(client):
    """submit(..., actor=True) makes an actor that keeps its state, from what the env gives."""
    actor = client.submit(Counter, actor=True).result()
    assert [actor.add().result(), actor.add().result()] == [101, 102]


def test_a_function_wrapped_by_hand_has_the_same_env(client):
    """wrap_func_with_worker_env changes nothing for this client, once or twice."""
    once = wrap_func_with_worker_env(work.plus)
    assert client.submit(once, 1).result() == 101
    assert client.gather(client.map(wrap_func_with_worker_env(once), [1, 2])) == [101, 102]


# --- Dask's own habits ----------------------------------------------------------------------------


def test_futures_are_arguments(client):
    """A future given as an argument, by position or by name, arrives as its result; scattered data too."""
    one = client.submit(work.plus, 1)
    assert client.submit(work.plus, one).result() == 201
    assert client.submit(lambda a, b: (a, b), 1, b=one).result() == (1, 101)
    assert client.submit(work.plus, client.scatter(5)).result() == 105


def test_options_of_dask_pass(client, tmp_path):
    """key, workers, pure, retries, priority, resources and batch_size mean what they mean to Dask."""
    address = min(client.scheduler_info()["workers"])
    assert client.submit(where, workers=[address], pure=False).result() == address
    assert client.submit(work.plus, 1, key="my-key", priority=3, resources={}).key == "my-key"
    assert [f.key for f in client.map(work.plus, [1, 2], key=["a", "b"])] == ["a", "b"]
    assert client.gather(client.map(work.plus, range(7), batch_size=3)) == list(range(100, 107))
    assert client.submit(work.plus, 1, pure=True).key == client.submit(work.plus, 1, pure=True).key
    assert client.submit(work.plus, 1, pure=False).key != client.submit(work.plus, 1, pure=False).key
    assert client.gather(client.map(lambda a, b: a - b, [5, 6], [1, 2])) == [4, 4]
    assert client.submit(work.raises_once, str(tmp_path / "once"), retries=1).result() == 100
    assert list(client.get_executor().map(work.plus, range(3))) == [100, 101, 102]


# --- exceptions -----------------------------------------------------------------------------------


def raise_plain(x):
    raise work.TwoPartError(x, "why")


def raise_with_lock(x):
    raise LookupError(x, threading.Lock())


def raise_while_handling(x):
    try:
        raise RuntimeError(threading.Lock())
    except RuntimeError:
        raise LookupError("bad sample")  # noqa: B904  most code does not say `from`


@pytest.mark.parametrize(
    ("func", "kind"),
    [(raise_plain, work.TwoPartError), (raise_with_lock, LookupError), (raise_while_handling, LookupError)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_exception_is_itself_with_a_note(client, func, kind):
    """An exception keeps its type whatever Dask's pickling makes of it, and a note names the call."""
    with pytest.raises(kind):
        client.gather(client.map(func, [13]))
    with pytest.raises(kind) as caught:
        client.submit(func, 13).result()
    assert type(caught.value) is kind
    assert f"in the call {func.__name__}(13), on " in note_of(caught.value)


def test_a_call_that_leaves_ends_no_worker(client):
    """A function that calls sys.exit is a RuntimeError that says so, and its worker goes on."""

    def leave(x):
        raise SystemExit(x)

    before = set(client.scheduler_info()["workers"])
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        client.gather(client.map(leave, [3]))
    assert set(client.scheduler_info()["workers"]) == before
    assert client.submit(work.plus, 1).result() == 101


# --- with a client of the user's own ----------------------------------------------------------------


@pytest.fixture(scope="module")
def users():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with distributed.Client(processes=False, **options) as users:
        yield users


@pytest.fixture
def register(users):
    """Register plugins, and take them away after the test."""
    names = []

    def register(setup_fn):
        names.append(f"env-{len(names)}")
        users.register_plugin(DictReturnWorkerPlugin(setup_fn), name=names[-1])

    yield register
    for name in names:
        users.unregister_worker_plugin(name)


def test_the_env_is_there_for_wrapped_functions_and_ours(users, register, tmp_path):
    """After register_plugin, wrapped functions of client.map and the functions of this package see the env."""

    def setup():
        work.log(tmp_path, work.pid(0))
        return {"y": 100}

    register(setup)
    assert len(set(lines(tmp_path))) == len(lines(tmp_path)) >= 1  # once a process, at once
    assert users.gather(users.map(wrap_func_with_worker_env(work.plus), range(3))) == [100, 101, 102]
    assert users.submit(wrap_func_with_worker_env(work.plus), 1).result() == 101
    assert parallel_map(work.plus, range(3), client=users) == [100, 101, 102]
    assert sorted(parallel_for(work.plus, range(3), client=users)) == [100, 101, 102]
    assert parallel_submit(work.plus, 1, client=users).result() == 101
    assert users.submit(work.plus, 1).result() == 2  # not wrapped: Dask's own call
    assert len(set(lines(tmp_path))) == len(lines(tmp_path))


def test_the_plugin_registered_last_counts_until_it_is_taken_away(users):
    """A second plugin's env takes the place of the first one's, which is back when it is unregistered."""
    call = wrap_func_with_worker_env(work.plus)
    for name, y in (("one", 100), ("two", 200)):
        users.register_plugin(DictReturnWorkerPlugin(lambda y=y: {"y": y}), name=name)
    assert users.submit(call, 0, pure=False).result() == 200
    users.unregister_worker_plugin("two")
    assert users.submit(call, 0, pure=False).result() == 100
    users.unregister_worker_plugin("one")
    assert users.submit(call, 0, pure=False).result() == 1


@pytest.mark.parametrize("setup", [lambda: None, lambda: {1: 2}], ids=["None", "keys"])
def test_a_setup_that_returns_no_dict_is_a_value_error(users, register, setup):
    """Registering a plugin whose setup_fn returns no dict of names is a ValueError that says what it returned."""
    with pytest.raises(ValueError, match=r"must return a dict|keys must be strings"):
        register(setup)
    assert users.submit(wrap_func_with_worker_env(work.plus), 1, pure=False).result() == 2


def test_a_setup_that_raises_is_a_setup_error(users, register):
    """Registering a plugin whose setup_fn raises is a WorkerSetupError with the worker's traceback."""

    def setup():
        raise LookupError(threading.Lock())

    with pytest.raises(WorkerSetupError, match="in setup"):
        register(setup)


def test_a_client_of_threads_that_nobody_closes_ends_with_the_program(tmp_path):
    """A program that ends without closing its client has the processes for its items ended, and nothing shown."""
    done = finish(start_script(tmp_path, LEFT_OPEN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


LEFT_OPEN = """
from distributed import Client
from espnet3.parallel import parallel_map

client = Client(processes=False, n_workers=2, dashboard_address="127.0.0.1:0")
print(parallel_map(abs, [-1, -2], client=client))
"""


# --- the dashboard -----------------------------------------------------------------------------------


@pytest.fixture
def bokeh(monkeypatch):
    """Pretend that bokeh is installed: the scheduler's HTTP server is there in any case."""
    monkeypatch.setattr(client_module, "find_spec", lambda name: name == "bokeh")


def test_the_dashboard_is_told_once(bokeh, capsys):
    """A run says once where the dashboard is, on loopback, and a server answers."""
    runner = work.Times(work.Provider({"factor": 3}))
    with get_client(TWO):
        parallel_map(abs, range(10))
        runner(range(10))
        runner(range(10))
        told, *others = capsys.readouterr().err.splitlines()
        name, address = told.split(": ", 1)
        assert name == "dashboard" and address.startswith("http://127.0.0.1:")
        assert len([line for line in others if line.startswith("Times: ")]) == 2
        assert not any("dashboard" in line for line in others)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        try:
            code = opener.open(address, timeout=600).status
        except urllib.error.HTTPError as error:
            code = error.code
        assert code == (200 if find_spec("bokeh") else 404)  # it answers, and has no page without bokeh

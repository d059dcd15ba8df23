"""Several uses of one client at once: inside each other, from threads, beside plain Dask futures."""

import builtins
import itertools
import os
import threading
from contextlib import contextmanager

import pytest

from espnet3.parallel import BaseRunner, get_client, parallel_for, parallel_map
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO


@pytest.fixture(scope="module")
def client():
    with get_client(TWO) as client:
        yield client


@contextmanager
def occupied(client, folder):
    """Hold both Dask threads of the workers for a block of code."""
    pipes = [folder / str(at) for at in range(2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    pending = client.map(lambda pipe: pipe.read_text(), pipes, pure=False)
    yield
    assert all(future.status == "pending" for future in pending)
    for pipe in pipes:
        open(pipe, "w").close()
    assert client.gather(pending) == ["", ""]


def inner(x):
    return sum(parallel_map(work.plus, range(10), y=x))


def failed_calls():
    """Return the exceptions of three failed calls, each with its traceback and all that this refers to."""
    kept = []
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as caught:
            parallel_map(lambda x: 1 / 0, range(10))
        kept.append(caught.value)
    return kept


def test_a_map_inside_the_loop_over_a_stream(client):
    """parallel_map inside a loop over parallel_for on the same client works, and the stream goes on after it."""
    got = [(x, parallel_map(work.plus, range(3), y=x)) for x in parallel_for(work.plus, range(50))]
    assert sorted(got) == [(x, [x, x + 1, x + 2]) for x in range(1, 51)]


def test_a_map_from_a_second_thread_while_a_stream_goes_on(client, tmp_path):
    """A second thread's parallel_map is served while the first thread's endless stream goes on."""
    streaming, done = threading.Event(), threading.Event()

    def stream():
        for _ in parallel_for(work.plus, itertools.count(), client=client):
            streaming.set()
            if done.is_set():
                return

    with occupied(client, tmp_path):
        thread = threading.Thread(target=stream)
        thread.start()
        streaming.wait()
        for _ in range(5):
            assert parallel_map(work.plus, range(100), client=client) == list(range(1, 101))
        done.set()
        thread.join()


def test_a_runner_beside_a_pending_future(client, tmp_path):
    """A runner gets through while a plain future of the same client holds every Dask thread."""
    with occupied(client, tmp_path):
        runner = work.Times(work.Provider({"factor": 3}), progress=False)
        assert runner(range(200)) == [3 * x for x in range(200)]


class Nested(BaseRunner):
    @staticmethod
    def forward(idx):
        return inner(idx)


def test_a_map_inside_an_item(client):
    """parallel_map inside a function that runs on a worker works: from parallel_map, a runner and submit."""
    wanted = [45 + 10 * x for x in range(6)]
    assert client.gather([client.submit(inner, x) for x in range(6)]) == wanted
    assert Nested(work.Whole({}), progress=False)(range(6)) == wanted
    assert parallel_map(inner, range(6)) == wanted


def at_once(x):
    """Return how many items this worker's process is inside of, counted by itself."""
    state = builtins.__dict__.setdefault("_inside", {"n": 0, "lock": threading.Lock()})
    with state["lock"]:
        state["n"] += 1
        seen = state["n"]
    sum(range(200))
    with state["lock"]:
        state["n"] -= 1
    return seen


def test_a_worker_never_runs_more_items_at_once_than_it_has_threads(client):
    """After nested use and failed calls a worker with one thread runs one item at a time, and a run counts two."""
    for _ in parallel_for(work.plus, range(4)):
        parallel_map(work.plus, range(3))
    kept = failed_calls()
    assert max(parallel_map(at_once, range(3000))) == 1
    runner = work.Times(work.Provider({"factor": 3}), progress=False)
    runner(range(5000))
    assert runner.summary.slots <= 2, (runner.summary, kept)

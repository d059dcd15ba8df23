"""Which open client a call without `client=` uses: nested blocks, threads, asyncio tasks, Dask's own functions."""

import asyncio
import threading
from contextlib import contextmanager

import dask
import distributed
import pytest

from espnet3.parallel import BaseRunner, get_client, parallel_map, parallel_submit, set_parallel
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO

THREAD = {"env": "local", "n_workers": 1, "options": {"processes": False}}  # opens in 0.1 s


class Named(BaseRunner):
    @staticmethod
    def forward(idx, name):
        return name


class NoEnv(work.EnvironmentProvider):
    def build_env_local(self):
        return {"name": "a runner's own"}


def named(x, name="nobody"):
    return name


@contextmanager
def opened(name, config=THREAD):
    with get_client(config, setup_fn=lambda: {"name": name}) as client:
        yield client


def used():
    """Return whose env each way of calling sees: one name, if they agree."""
    names = {*parallel_map(named, range(3)), parallel_submit(named, 1).result()}
    (name,) = names
    return name


def daskers():
    """Return the client that Dask's own functions find, or None."""
    try:
        return distributed.get_client()
    except ValueError:
        return None


def test_nested_blocks_restore_the_outer_client():
    """Leaving an inner block, by an error too, gives the outer client back, for this package and for Dask."""
    assert (used(), daskers()) == ("nobody", None)
    with opened("outer") as outer:
        assert (used(), daskers()) == ("outer", outer)
        with pytest.raises(LookupError), opened("inner") as inner:
            assert (used(), daskers()) == ("inner", inner)
            assert outer.submit(named, 1).result() == "outer"
            assert parallel_map(named, [1], client=outer) == ["outer"]
            raise LookupError
        assert (used(), daskers()) == ("outer", outer)
    assert (used(), daskers()) == ("nobody", None)


def test_each_thread_uses_its_own_client():
    """Two threads with a client each never use each other's; before, each uses the main thread's."""
    seen, barrier = {}, threading.Barrier(2, timeout=600)

    def in_thread(name):
        before = used()  # it has opened none: the main thread's
        with opened(name) as client:
            barrier.wait()
            seen[name] = [before, *(used() for _ in range(5))]
            assert daskers() is client
            barrier.wait()

    with opened("main") as main:
        threads = [threading.Thread(target=in_thread, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (used(), daskers()) == ("main", main)
    assert seen == {"one": ["main", *5 * ["one"]], "two": ["main", *5 * ["two"]]}
    assert dask.delayed(named)(1).compute() == "nobody"


def test_each_asyncio_task_uses_its_own_client():
    """Two asyncio tasks of one thread, each in a block of its own, use their own clients."""

    async def task(name, turn, other):
        with opened(name) as client:
            turn.set()
            await other.wait()
            return used(), daskers() is client

    async def main():
        one, two = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(task("one", one, two), task("two", two, one))

    assert asyncio.run(main()) == [("one", True), ("two", True)]


def test_a_runner_uses_the_open_client_and_its_own_env():
    """A runner runs on the open client, with its provider's env and not the client's."""
    with opened("client"):
        assert Named(NoEnv(), progress=False)(range(3)) == 3 * ["a runner's own"]
        assert used() == "client"


def test_a_plain_client_beside_ours():
    """A distributed.Client of the user's own is Dask's default again after a block of ours, and stays open."""
    with distributed.Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as plain:
        with opened("ours") as ours:
            assert daskers() is ours
        assert daskers() is plain
        parallel_map(named, range(3), client=plain)
        assert plain.submit(work.plus, 1).result() == 2


def opens_a_client(_):
    with get_client(TWO):
        inside = set(parallel_map(work.pid, range(100)))
    return work.pid(0), inside, set(parallel_map(work.pid, range(3)))


def test_an_item_that_opens_a_client_uses_it():
    """Inside an item, the client of a block of the item's own is used."""
    set_parallel(TWO)
    for item, inside, after in parallel_map(opens_a_client, range(2)):
        assert inside and item not in inside
        assert after == {item}

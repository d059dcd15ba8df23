"""A cluster of the user's own: whatever becomes of the processes beside its workers, these live on."""

import functools
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from distributed.core import Status

from espnet3.parallel import DictReturnWorkerPlugin, NoWorkersError, parallel_for, parallel_map, set_parallel
from espnet3.parallel.pilots import pool
from espnet3.parallel.pilots.dask.pools import pool_of
from espnet3.parallel.records import Policy
from tests.habits import rows
from tests.parallel.faults.items import AT, holds_the_lock, tells_and_sleeps
from tests.parallel.faults.mischief import breaks_the_pilot, closes_the_channel, fills_memory
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.watching import Mailbox
from tests.parallel.faults.workloads import pid_of, segfault
from tests.waiting import wait_until


@contextmanager
def users_client(processes: bool = True, memory_limit: Any = "500MB") -> Iterator[Any]:
    """Open a LocalCluster with two workers, and a client of it."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=processes,
            memory_limit=memory_limit,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(params=rows(["processes", "threads"], ("processes",)), scope="module")
def users_cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client for the tests of this module that may share its workers."""
    with users_client(request.param == "processes") as client:
        yield client


@pytest.fixture
def both_workers(users_cluster: Any) -> Any:
    """The client, once both of its workers are there."""
    # one that was killed may be listed for a moment, and to look more often would keep its successor from coming
    wait_until(lambda: len(workers(users_cluster)) == 2, every=0.2)
    return users_cluster


def workers(client: Any) -> dict[str, int]:
    found: dict[str, int] = client.run(os.getpid, on_error="ignore")
    return found


def test_a_process_that_breaks_is_replaced(users_cluster: Any, folder: Path) -> None:
    """An item that damages what runs the next chunk loses no result, and no worker of Dask's."""
    before = workers(users_cluster)
    for name in ("once", "twice"):
        where = str(folder / name)
        results = parallel_map(breaks_the_pilot, range(2000), client=users_cluster, at=100, where=where)
        assert results == list(range(2000))
    assert workers(users_cluster) == before


def test_a_slot_whose_channel_breaks_opens_again(users_cluster: Any, folder: Path) -> None:
    """An item that closes the package's own connections, even on all workers, costs no worker and no wait."""
    before = workers(users_cluster)
    for at in range(4):
        results = parallel_map(
            closes_the_channel, range(2000), client=users_cluster, at=at * 400, where=str(folder / str(at))
        )
        assert results == list(range(2000))
    assert workers(users_cluster) == before


def test_a_worker_whose_driver_is_too_busy_is_not_lost(
    both_workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is started for one that the driver has not answered in all its attempts."""
    greet, busy = pool.Door._greet, iter(range(16))
    monkeypatch.setattr(pool.Door, "_greet", lambda *to: to[1].close() if next(busy, 16) < 16 else greet(*to))
    with Client(both_workers.cluster) as client:
        slots = pool_of(client)
        wait_until(lambda: len({slot.hello.address for slot in slots.idle}) == 2)


def test_workers_outlive_long_items(both_workers: Any, folder: Path, mailbox: Mailbox) -> None:
    """A stream that is closed in the middle of items does not wait for them, and costs no worker of Dask's."""
    before = workers(both_workers)
    results = parallel_for(tells_and_sleeps, itertools.count(), client=both_workers, root=str(folder))
    thread = threading.Thread(target=lambda: next(results))
    thread.start()
    mailbox.take(3)  # one is done, the next one runs
    thread.join()
    results.close()
    assert workers(both_workers) == before
    assert parallel_map(abs, range(10), client=both_workers) == list(range(10))


def segfaults(x: int) -> int:
    if x == AT:
        segfault()
    return x


def freezes(x: int) -> int:
    if x == AT:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)  # the signal may land late
    return x


@pytest.mark.parametrize(
    ("item", "policy", "said"),
    [
        (segfaults, Policy("record", poison_after=1), "was killed by SIGSEGV"),
        (functools.partial(fills_memory, at=AT), Policy("record"), "more than its memory_limit ("),
        (holds_the_lock, Policy("record", item_timeout=2.0), "2 s"),
        (freezes, Policy("record"), "gave no sign of life for"),
    ],
    ids=["segfault", "memory", "lock", "frozen"],
)
def test_dasks_workers_outlive_their_items(
    both_workers: Any, item: Callable[[int], Any], policy: Policy, said: str
) -> None:
    """What ends, fills, holds up or freezes a process costs its item alone; Dask's workers are the same processes."""
    set_parallel({"env": "local", "frozen_timeout": 3.0})
    before = workers(both_workers)
    results, tally, _ = run(item, range(AT + 5), policy, both_workers)
    (failure,) = failures(results)
    assert (failure.index, len(results)) == (AT, AT + 5)
    assert said in failure.message
    assert tally.deaths >= 1
    assert workers(both_workers) == before
    assert not set(parallel_map(pid_of, range(20), client=both_workers)) & set(before.values())


def pauses(dask_worker: Any) -> None:
    dask_worker.status = Status.paused


def test_a_paused_worker_tells_how_its_process_ended() -> None:
    """The reason of a death is known where Dask has paused the worker because its own process holds much memory."""
    with users_client(memory_limit=0) as client:  # no limit: nothing ends the pause
        client.run(pauses)
        results, _, _ = run(segfaults, range(AT + 5), Policy("record", poison_after=1), client)
        (failure,) = failures(results)
        assert (failure.index, len(results)) == (AT, AT + 5)
        assert "was killed by SIGSEGV" in failure.message


def _built(folder: str) -> dict[str, Any]:
    Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return {"folder": folder}


def process_with(x: int, folder: str) -> tuple[int, str]:
    return os.getpid(), folder


def test_an_env_of_a_plugin_reaches_the_processes(both_workers: Any, folder: Path) -> None:
    """What a plugin registers on Dask's workers is the env of items, built once in each process that runs them."""
    parallel_map(abs, range(3), client=both_workers)  # the processes are there before the plugin
    both_workers.register_plugin(DictReturnWorkerPlugin(functools.partial(_built, str(folder))), name="env")
    try:
        for _ in range(2):
            seen = set(parallel_map(process_with, range(50), client=both_workers))
            assert {found for _, found in seen} == {str(folder)}
        assert all(len(list(folder.glob(f"{pid}-*"))) == 1 for pid, _ in seen)
    finally:
        both_workers.unregister_worker_plugin("env")
    assert parallel_map(abs, [-1], client=both_workers) == [1]


def breaks_python() -> None:
    os.environ["PYTHONHOME"] = os.devnull


@pytest.mark.parametrize("broken", [1, 2])
def test_a_worker_that_can_have_no_process_leaves_its_work_to_the_others(broken: int) -> None:
    """Other workers do the work where no process of ours can start; the error says where, if it can nowhere."""
    with users_client() as client:
        names = list(workers(client))
        client.run(breaks_python, workers=names[:broken])
        with pytest.raises(NoWorkersError, match=names[0]) if broken == 2 else nullcontext():
            assert parallel_map(abs, range(100), client=client) == list(range(100))

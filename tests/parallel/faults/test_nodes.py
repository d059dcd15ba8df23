"""A worker on a node: items run in a process beside Dask's worker, which lives on whatever becomes of them."""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import DictReturnWorkerPlugin, parallel_map, set_parallel
from espnet3.parallel.records import Policy
from tests.parallel.faults.items import AT, holds_the_lock
from tests.parallel.faults.mischief import fills_memory
from tests.parallel.faults.running import failures, run
from tests.parallel.faults.workloads import pid_of, segfault


def segfaults(x: int) -> int:
    if x == AT:
        segfault()
    return x


@pytest.fixture(scope="module")
def node() -> Iterator[Any]:
    """Open a LocalCluster of the user's, with one worker, and a client of it."""
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            memory_limit="500MB",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        set_parallel({"env": "local", "start_timeout": 600})
        yield client


@pytest.mark.parametrize(
    ("item", "policy", "said"),
    [
        (segfaults, Policy("record", poison_after=1), "was killed by SIGSEGV"),
        (functools.partial(fills_memory, at=AT), Policy("record"), "more than its memory_limit ("),
        (holds_the_lock, Policy("record", item_timeout=2.0), "2 s"),
    ],
    ids=["segfault", "memory", "lock"],
)
def test_dasks_worker_outlives_its_items(
    node: Any, item: Callable[[int], Any], policy: Policy, said: str
) -> None:
    """A crash, memory beyond the limit and a lock that is held cost their item; Dask's worker is the same process."""
    before = node.run(os.getpid)
    results, tally, _ = run(item, range(AT + 5), policy, node)
    (failure,) = failures(results)
    assert (failure.index, len(results)) == (AT, AT + 5)
    assert said in failure.message
    assert tally.deaths >= 1
    assert node.run(os.getpid) == before
    assert not set(parallel_map(pid_of, range(20), client=node)) & set(before.values())


def _built(folder: str) -> dict[str, Any]:
    Path(folder, f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return {"folder": folder}


def process_with(x: int, folder: str) -> tuple[int, str]:
    return os.getpid(), folder


def test_an_env_of_a_plugin_reaches_the_process(node: Any, folder: Path) -> None:
    """What a plugin registers on Dask's workers is the env of items, built once in the process that runs them."""
    parallel_map(abs, range(3), client=node)  # the process is there before the plugin
    node.register_plugin(DictReturnWorkerPlugin(functools.partial(_built, str(folder))), name="env")
    try:
        for _ in range(2):
            seen = set(parallel_map(process_with, range(50), client=node))
            assert {found for _, found in seen} == {str(folder)}
        (pid,) = {pid for pid, _ in seen}
        assert len(list(folder.glob(f"{pid}-*"))) == 1
    finally:
        node.unregister_worker_plugin("env")
    assert parallel_map(abs, [-1], client=node) == [1]

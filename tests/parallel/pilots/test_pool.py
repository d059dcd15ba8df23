"""Slots that come and go while runs want them."""

from __future__ import annotations

import os
import select
import signal

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.pilots.dask.plugin import PilotHost
from espnet3.parallel.pilots.dask.pools import pool_of
from espnet3.parallel.pilots.pool import Pool


def process_of(_: int) -> int:
    """Return the worker's process."""
    return os.getpid()


def test_a_slot_that_leaves_is_followed_by_the_next_one_of_its_worker() -> None:
    """A worker that was given its plugin twice, as one that comes during a retry is, still serves runs.

    Its first slot leaves at its first chunk, when the second one has been idle beside it for long.
    """
    config = {"env": "local", "n_workers": 1, "start_timeout": 10, "options": {"threads_per_worker": 1}}
    with get_client(config) as client:
        assert parallel_map(abs, [-1], client=client) == [1]
        pool = pool_of(client)
        assert isinstance(pool, Pool)
        news = pool.claim()
        client.register_plugin(PilotHost(pool.address, pool.key, pool.name), name=pool.name)
        assert select.select([news], [], [], 30)[0]  # the second slot has come
        news.close()
        assert parallel_map(abs, range(-100, 0), client=client) == list(range(100, 0, -1))


def test_workers_that_come_and_go_leave_no_descriptor_in_a_client() -> None:
    """A client that sees many workers come and go, as an autoscaled one does for days, keeps no channel of theirs."""
    rounds, descriptors = 12, []
    with get_client({"env": "local", "n_workers": 1, "start_timeout": 30}) as client:
        for _ in range(rounds):
            (worker,) = set(parallel_map(process_of, range(3), client=client))
            descriptors.append(len(os.listdir("/dev/fd")))
            os.kill(worker, signal.SIGKILL)
    # a few belong to the worker that comes or goes just now
    assert descriptors[-1] - descriptors[1] < rounds / 2, descriptors

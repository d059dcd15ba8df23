"""Slots that come and go while runs want them."""

from __future__ import annotations

import select

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.pilots.dask.plugin import PilotHost
from espnet3.parallel.pilots.dask.pools import pool_of
from espnet3.parallel.pilots.pool import Pool


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

"""Slots that come and go while runs want them."""

from __future__ import annotations

import os
import select
import signal

import pytest

from espnet3.parallel import get_client, parallel_map
from espnet3.parallel.pilots.dask import pools
from espnet3.parallel.pilots.dask.pools import PilotHost, pool_of
from espnet3.parallel.pilots.pool import Pool
from tests.parallel.pilots.items import process_of


def test_a_slot_that_leaves_is_followed_by_the_next_one_of_its_worker() -> None:
    """A worker that was given its plugin twice, as one that comes during a retry is, still serves runs.

    Its first slot leaves at its first chunk, when the second one has been idle beside it for long.
    """
    config = {"env": "local", "n_workers": 1, "start_timeout": 600, "options": {"threads_per_worker": 1}}
    with get_client(config) as client:
        assert parallel_map(abs, [-1], client=client) == [1]
        pool = pool_of(client)
        assert isinstance(pool, Pool)
        news = pool.claim()
        client.register_plugin(PilotHost(pool.address, pool.key, pool.name), name=pool.name)
        assert select.select([news], [], [], 600)[0]  # the second slot has come
        news.close()
        assert parallel_map(abs, range(-100, 0), client=client) == list(range(100, 0, -1))


def test_workers_that_come_and_go_leave_no_descriptor_in_a_client() -> None:
    """A client that sees many workers come and go, as an autoscaled one does for days, keeps no channel of theirs."""
    rounds, descriptors = 6, []
    with get_client({"env": "local", "n_workers": 1, "start_timeout": 600}) as client:
        for _ in range(rounds):
            (worker,) = set(parallel_map(process_of, range(3), client=client))
            descriptors.append(len(os.listdir("/dev/fd")))
            os.kill(worker, signal.SIGKILL)
    # a few belong to the worker that comes or goes just now
    assert descriptors[-1] - descriptors[1] < rounds / 2, descriptors


class OneDies:
    """A client, one of whose workers ends while they are all told of a plugin."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.told = 0

    def register_plugin(self, plugin: object, name: str) -> None:
        """Fail as often as there are errors."""
        self.told += 1
        if self.errors:
            raise self.errors.pop(0)


def test_a_worker_that_ends_while_all_are_told_of_a_plugin_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it goes before its connection or between that and its handshake, the others are told again."""
    monkeypatch.setattr(pools, "_PAUSE", 0.0)
    client = OneDies(OSError("refused"), ValueError("IOStream is not idle; cannot convert to SSL"))
    pools.register(client, object(), "any")
    assert client.told == 3
    broken = OneDies(ValueError("what its setup raised"))
    with pytest.raises(ValueError, match="what its setup raised"):
        pools.register(broken, object(), "any")
    assert broken.told == 1
    with pytest.raises(OSError, match="refused"):
        pools.register(OneDies(*[OSError("refused")] * 9), object(), "any")

"""`set_parallel`, `get_parallel_config`, `build_client`: what they take, keep and start."""

import os
import subprocess
import sys
from types import MappingProxyType

import pytest
from distributed import Client, get_client
from omegaconf import OmegaConf

from espnet3.parallel import (
    ConfigError,
    ParallelConfig,
    build_client,
    get_parallel_config,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, children


@pytest.mark.parametrize(
    "make",
    [dict, OmegaConf.create, MappingProxyType, lambda d: ParallelConfig(**d)],
    ids=["dict", "DictConfig", "another-mapping", "ParallelConfig"],
)
def test_every_kind_of_config_is_registered(make):
    """set_parallel takes a mapping, a DictConfig or a ParallelConfig, and get_parallel_config gives it back."""
    set_parallel(make({"env": "local", "n_workers": 3, "options": {"threads_per_worker": 2}}))
    config = get_parallel_config()
    assert (config.env, config.n_workers, dict(config.options)) == ("local", 3, {"threads_per_worker": 2})
    assert (config["env"], config["n_workers"]) == ("local", 3)


def test_later_edits_of_the_callers_object_change_nothing():
    """What was registered is a copy, at every depth."""
    mine = OmegaConf.create({"env": "local", "n_workers": 3, "options": {"worker_kwargs": {"a": 1}}})
    mine["options"] = {"threads_per_worker": 2}
    set_parallel(mine)
    mine["n_workers"] = 7
    mine["options"]["threads_per_worker"] = 9
    assert get_parallel_config().n_workers == 3
    assert get_parallel_config().options["threads_per_worker"] == 2


def test_what_is_registered_stays():
    """What get_parallel_config returns cannot be edited, and a configuration that is refused changes nothing."""
    set_parallel(TWO)
    config = get_parallel_config()
    with pytest.raises((AttributeError, TypeError)):
        config.n_workers = 5
    with pytest.raises(ConfigError):
        set_parallel({"env": "local", "n_workers": 0})
    assert get_parallel_config().n_workers == 2


def test_a_stream_keeps_the_config_it_was_made_with():
    """parallel_for uses the configuration that was registered when it was called."""
    stream = parallel_for(work.pid, range(3))
    set_parallel(TWO)
    assert set(stream) == {os.getpid()}


def test_a_registered_cluster_is_used_and_gone_after_each_call():
    """With two workers registered, calls run in other processes and leave none; nor does a stream at a script's end."""
    before = children()
    set_parallel(TWO)
    assert os.getpid() not in parallel_map(work.pid, range(50))
    assert os.getpid() not in set(parallel_for(work.pid, range(50)))
    stream = parallel_for(work.pid, iter(int, 1))
    next(stream)
    stream.close()
    assert children() <= before
    script = "import espnet3.parallel as p; p.set_parallel({'n_workers': 2}); s = p.parallel_for(abs, [1] * 9); next(s)"
    assert subprocess.check_output([sys.executable, "-c", script], stderr=subprocess.STDOUT) == b""


def test_build_client_returns_a_client_that_owns_its_cluster():
    """build_client returns a Dask client with the registered workers; closing it ends them."""
    before = children()
    set_parallel(TWO)
    client = build_client()
    try:
        assert isinstance(client, Client) and get_client() is client  # Dask's default, also without a block
        assert len(client.scheduler_info()["workers"]) == 2
        assert parallel_map(work.plus, range(9), client=client) == list(range(1, 10))
        assert client.submit(work.plus, 1).result() == 2
    finally:
        client.close()
    assert children() <= before
    client.close()  # closing twice is no error

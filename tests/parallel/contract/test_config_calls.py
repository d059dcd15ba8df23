"""`set_parallel`, `get_parallel_config`, `build_client`: what they take, keep and start."""

import os
from types import MappingProxyType

import pytest
from distributed import Client
from omegaconf import OmegaConf

import espnet3.parallel as package
from espnet3.parallel import (
    ConfigError,
    MissingPackageError,
    ParallelConfig,
    build_client,
    get_parallel_config,
    make_client,
    parallel_for,
    parallel_map,
    set_parallel,
)
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, children, run_script


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


@pytest.mark.parametrize("make", [dict, OmegaConf.create], ids=["dict", "DictConfig"])
def test_later_edits_of_the_callers_object_change_nothing(make):
    """What was registered is a copy, at every depth."""
    mine = make({"env": "local", "n_workers": 3, "options": {"worker_kwargs": {"a": 1}}})
    mine["options"] = {"threads_per_worker": 2}
    set_parallel(mine)
    mine["n_workers"] = 7
    mine["options"]["threads_per_worker"] = 9
    assert get_parallel_config().n_workers == 3
    assert get_parallel_config().options["threads_per_worker"] == 2


def test_what_is_read_back_cannot_be_edited():
    """The registered configuration cannot be changed through what get_parallel_config returns."""
    set_parallel(TWO)
    config = get_parallel_config()
    with pytest.raises((AttributeError, TypeError)):
        config.n_workers = 5
    with pytest.raises(TypeError):
        config["n_workers"] = 5
    assert get_parallel_config().n_workers == 2


def test_a_refused_config_leaves_the_registered_one():
    """A configuration that is wrong is a ValueError, and the one registered before stays."""
    set_parallel(TWO)
    with pytest.raises(ConfigError):
        set_parallel({"env": "local", "n_workers": 0})
    assert get_parallel_config().n_workers == 2


def test_none_takes_the_default_back():
    """set_parallel(None) registers local with one worker again."""
    set_parallel(TWO)
    set_parallel(None)
    assert (get_parallel_config().env, get_parallel_config().n_workers) == ("local", 1)


def test_a_stream_keeps_the_config_it_was_made_with():
    """parallel_for uses the configuration that was registered when it was called."""
    stream = parallel_for(work.pid, range(3))
    set_parallel(TWO)
    assert set(stream) == {os.getpid()}


def test_a_registered_cluster_is_used_and_gone_after_each_call():
    """With two workers registered, parallel_map and parallel_for run in other processes and leave none."""
    before = children()
    set_parallel(TWO)
    assert os.getpid() not in parallel_map(work.pid, range(50))
    assert os.getpid() not in set(parallel_for(work.pid, range(50)))
    stream = parallel_for(work.pid, iter(int, 1))
    next(stream)
    stream.close()
    assert children() <= before


def test_build_client_and_make_client_are_one():
    """Both documented names are the same function."""
    assert make_client is build_client is package.make_client
    assert package.parallel.make_client is build_client


def test_build_client_returns_a_client_that_owns_its_cluster():
    """build_client returns a Dask client with the registered workers; closing it ends them."""
    before = children()
    set_parallel(TWO)
    client = build_client()
    try:
        assert isinstance(client, Client)
        assert len(client.scheduler_info()["workers"]) == 2
        assert parallel_map(work.plus, range(9), client=client) == list(range(1, 10))
        assert client.submit(work.plus, 1).result() == 2
    finally:
        client.close()
    assert children() <= before
    client.close()  # closing twice is no error


def test_build_client_is_a_context_manager():
    """`with build_client(config) as client` closes client and cluster, as Dask's own clients do."""
    before = children()
    with build_client(TWO) as client:
        assert client.gather(client.map(work.plus, range(4))) == [1, 2, 3, 4]
    assert children() <= before


def test_more_gpus_than_there_are_is_an_error():
    """local_gpu with more workers than any machine has GPUs does not start."""
    set_parallel({"env": "local_gpu", "n_workers": 2})
    with pytest.raises((ConfigError, MissingPackageError)):
        build_client({"env": "local_gpu", "n_workers": 4096})


def test_one_local_worker_neither_starts_nor_imports_dask(tmp_path):
    """Without a configuration, and with local and one worker, nothing of Dask is imported or started."""
    run_script(
        tmp_path,
        """
        import sys
        import psutil
        from espnet3.parallel import get_parallel_config, parallel_for, parallel_map, parallel_submit, set_parallel
        from tests.parallel.contract import work

        for config in (None, {"env": "local", "n_workers": 1}, {}):
            set_parallel(config)
            assert parallel_map(work.plus, range(9)) == list(range(1, 10))
            assert list(parallel_for(work.plus, range(9))) == list(range(1, 10))
            assert parallel_submit(work.plus, 3, setup_fn=lambda: {"y": 4}).result() == 7
            runner = work.TimesInBatches(work.Provider({"factor": 2}), batch_size=4)
            assert runner(range(9)) == list(range(0, 18, 2))
        assert (get_parallel_config().env, get_parallel_config().n_workers) == ("local", 1)
        assert not {"dask", "distributed", "torch", "numpy"} & set(sys.modules)
        assert psutil.Process().children() == []
        """,
    )


def test_documented_names_come_from_documented_modules():
    """Every documented name can be imported from the module that the documents name."""
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.env_provider import EnvironmentProvider
    from espnet3.parallel.inference_provider import InferenceProvider
    from espnet3.parallel.parallel import DictReturnWorkerPlugin, wrap_func_with_worker_env

    for value in (BaseRunner, EnvironmentProvider, InferenceProvider, DictReturnWorkerPlugin):
        assert getattr(package, value.__name__) is value
    assert package.wrap_func_with_worker_env is wrap_func_with_worker_env
    for name in ("set_parallel", "get_client", "parallel_map", "parallel_for", "parallel_submit"):
        assert getattr(package.parallel, name) is getattr(package, name)
    assert set(package.__all__) <= set(dir(package))

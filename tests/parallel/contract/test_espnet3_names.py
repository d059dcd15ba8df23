"""The names and words by which ESPnet3's own code and tests know the layer."""

import pytest
from omegaconf import DictConfig, OmegaConf

from espnet3.parallel import (
    BaseRunner,
    ConfigError,
    EnvironmentProvider,
    InferenceProvider,
    MissingPackageError,
    NoOutputDirError,
    build_client,
    build_local_gpu_cluster,
    get_client,
    get_parallel_config,
    make_local_gpu_cluster,
    parallel_map,
    set_parallel,
    wrap_func_with_worker_env,
)
from espnet3.parallel import parallel as module
from espnet3.systems.base.inference_provider import InferenceProvider as SystemsProvider
from tests.parallel.contract import work
from tests.parallel.contract.helpers import TWO, run_script

# --- the configuration ----------------------------------------------------------------------------


def test_a_registered_dictconfig_comes_back_as_one():
    """What get_parallel_config returns for a DictConfig is one: its keys, resolved, and the three main ones."""
    recipe = OmegaConf.create(
        {"jobs": 2, "parallel": {"env": "local", "n_workers": "${jobs}", "setup_timeout": 60}}
    )
    set_parallel(recipe.parallel)
    found = get_parallel_config()
    assert isinstance(found, DictConfig)
    assert OmegaConf.to_container(found) == {
        "env": "local",
        "n_workers": 2,
        "options": {},
        "setup_timeout": 60.0,
    }


@pytest.mark.filterwarnings("ignore:The parallel config")
def test_keys_of_the_users_own_are_read_back():
    """A key that means nothing here is there for the code that put it into the block, and no other one is."""
    set_parallel(OmegaConf.create({"n_workers": 2, "allow_overwrite_lock": True, "zzz": ["${a}", 1], "a": 7}))
    found = get_parallel_config()
    assert (found.allow_overwrite_lock, list(found.zzz)) == (True, [7, 1])
    assert "start_timeout" not in found
    found.n_workers = 5  # what was read back is a copy
    assert get_parallel_config().n_workers == 2


def test_parallel_config_is_the_registered_one(monkeypatch):
    """The module's parallel_config is what calls use, also where other code has set it; nothing registered: None."""
    set_parallel(TWO)
    assert module.parallel_config.n_workers == 2
    monkeypatch.setattr(module, "parallel_config", None)
    assert get_parallel_config() is None
    assert module.active_config().n_workers == 1
    monkeypatch.setattr(module, "parallel_config", OmegaConf.create({"n_workers": 3}))
    assert get_parallel_config().n_workers == 3
    assert module.active_config().n_workers == 3


def test_a_cluster_of_gpus_is_env_local_gpu():
    """build_local_gpu_cluster says what env: local_gpu says where it cannot be: too few GPUs, no package."""
    with pytest.raises((ConfigError, MissingPackageError)) as wanted:
        build_client({"env": "local_gpu", "n_workers": 1000})
    with pytest.raises(type(wanted.value)) as found:
        build_local_gpu_cluster(1000, {})
    assert str(found.value) == str(wanted.value)
    assert make_local_gpu_cluster is build_local_gpu_cluster
    assert module._make_client is module.make_client is build_client  # the documents name all three


# --- providers ------------------------------------------------------------------------------------


class SpeechOfSystems(SystemsProvider):
    build_dataset = staticmethod(work.Speech.build_dataset)
    build_model = staticmethod(work.Speech.build_model)


@pytest.mark.parametrize("base", [InferenceProvider, SystemsProvider])
@pytest.mark.usefixtures("place")
def test_a_config_by_its_other_name(base):
    """InferenceProvider(inference_config=...) is InferenceProvider(config), here and on workers; both are refused."""
    cls = work.Speech if base is InferenceProvider else SpeechOfSystems
    config = {"size": 4, "offset": 100}
    provider = cls(inference_config=config, params={"beam": 1000})
    assert provider.config == config
    assert work.Infer(provider, progress=False)(range(4)) == [1100, 1101, 1102, 1103]
    with pytest.raises(ConfigError, match="leave one of them out"):
        cls(config, inference_config=config)


class Newer(EnvironmentProvider):
    """Overrides the newer name, by the base's."""

    def build_env_local(self):
        return {"factor": self.config}

    def build_worker_setup_fn(self):
        setup = super().build_worker_setup_fn()
        return lambda: {**setup(), "unused": 1}


class Older(Newer):
    build_worker_setup_fn = EnvironmentProvider.build_worker_setup_fn

    def make_worker_setup_fn(self):
        factor = self.config
        return lambda: {"factor": 10 * factor}


@pytest.mark.parametrize(("cls", "factor"), [(Newer, 3), (Older, 30)])
def test_a_provider_may_override_either_name_of_the_setup_function(cls, factor):
    """build_worker_setup_fn and make_worker_setup_fn are one thing: what a subclass overrides is what both return."""
    provider = cls(3)
    assert provider.build_worker_setup_fn()()["factor"] == factor
    set_parallel(TWO)
    assert work.Times(provider, progress=False)(range(3)) == [0, factor, 2 * factor]


# --- words ----------------------------------------------------------------------------------------


def test_an_argument_conflict_is_called_that():
    """A name in the env and among the keywords is an "Argument conflict", a ValueError of gather or of the call."""
    with get_client({**TWO, "options": {"processes": False}}, setup_fn=lambda: {"y": 4}) as client:
        futures = client.map(wrap_func_with_worker_env(work.plus), [1], y=10)
        with pytest.raises(ValueError, match="Argument conflict"):
            client.gather(futures)
        with pytest.raises(ValueError, match="Argument conflict"):
            parallel_map(work.plus, [1], y=10)


def test_a_runner_with_files_requires_output_dir():
    """A runner with hooks and no output_dir "requires output_dir": a RuntimeError that is also a ValueError."""

    class Writes(BaseRunner):
        @staticmethod
        def forward(idx):
            return idx

        def merge(self, shard_dirs):
            return shard_dirs

    with pytest.raises(RuntimeError, match="requires output_dir") as caught:
        Writes(work.Whole(), progress=False)([0])
    assert isinstance(caught.value, (NoOutputDirError, ValueError))


def test_the_names_cost_no_import(tmp_path):
    """What ESPnet3's tests import from the module tells whether Dask is installed without importing it."""
    code = """
        import sys
        from espnet3.parallel.parallel import _DASK_AVAILABLE, parallel_config
        from espnet3.parallel.base_runner import BaseRunner, concatenate_shard_files
        print(_DASK_AVAILABLE, parallel_config, {"dask", "distributed", "torch", "omegaconf"} & set(sys.modules))
        """
    assert run_script(tmp_path, code).strip() == "True None set()"

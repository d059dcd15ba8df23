"""The documents' YAML: what `set_parallel` takes, and what it refuses as the documents say."""

import pytest
import yaml
from omegaconf import OmegaConf

from espnet3.parallel import ConfigError, get_parallel_config, set_parallel
from espnet3.parallel.parallel import active_config
from tests.parallel.contract.helpers import REPOSITORY
from tests.spec import documents


@pytest.mark.parametrize("name", documents.PARALLEL_BLOCKS)
def test_every_parallel_block_is_taken_whole(name):
    """set_parallel takes each printed block, and get_parallel_config has each of its values; a recipe is refused."""
    text = documents.PARALLEL_BLOCKS[name]
    wanted = yaml.safe_load(text)["parallel"]
    for block in (OmegaConf.create(text).parallel, wanted):
        set_parallel(block)
        config = get_parallel_config()
        assert (config.env, config.n_workers) == (wanted["env"], wanted["n_workers"])
        assert dict(config.options) == wanted.get("options", {})
    with pytest.raises(ConfigError, match=r"pass config\.parallel"):
        set_parallel(OmegaConf.create(text))


def test_the_slurm_dict_is_taken():
    """The dict of the manual setup, with a set of directives in it, is taken; the directives get an order."""
    set_parallel(documents.SLURM_DICT)
    options = get_parallel_config().options
    assert options["walltime"] == "30:00"
    assert options["memory"] == "16GB"
    assert options["job_extra_directives"] == sorted(documents.SLURM_DICT["options"]["job_extra_directives"])


def test_nothing_registered_is_local_with_one_worker():
    """If no configuration is registered, it is local with n_workers: 1."""
    assert get_parallel_config() is None
    assert (active_config().env, active_config().n_workers) == ("local", 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue", "gpu"),
        ("account", "my-lab"),
        ("walltime", "04:00:00"),
        ("job_extra_directives", ["--gres=gpu:1"]),
    ],
)
def test_cluster_keys_do_not_belong_under_local(key, value):
    """Each key that the documents call cluster-only is refused under local, and its owners are named."""
    with pytest.raises(ConfigError, match=key) as caught:
        set_parallel({"env": "local", "n_workers": 4, "options": {key: value}})
    assert "slurm" in str(caught.value)


@pytest.mark.parametrize("env", ["local", "local_gpu", "slurm"])
@pytest.mark.parametrize("key", ["accelerator", "devices", "num_nodes", "strategy"])
def test_trainer_settings_do_not_belong_under_parallel(key, env):
    """Each setting of the printed trainer blocks is refused in options and beside env, and sent to trainer."""
    value = OmegaConf.create(documents.TRAINER_BLOCKS["multi-GPU: two nodes"]).trainer[key]
    base = {"cores": 4, "memory": "32GB"} if env == "slurm" else {}
    for config in (
        {"env": env, "n_workers": 2, "options": {**base, key: value}},
        {"env": env, "n_workers": 2, "options": base, key: value},
    ):
        with pytest.raises(ConfigError, match=key) as caught:
            set_parallel(config)
        assert "trainer" in str(caught.value)


@pytest.mark.parametrize("name", documents.TRAINER_BLOCKS)
def test_a_trainer_block_is_no_parallel_block(name):
    """A printed trainer block given to set_parallel is refused, and the message says trainer."""
    recipe = OmegaConf.create(documents.TRAINER_BLOCKS[name])
    with pytest.raises(ConfigError, match="trainer"):
        set_parallel(recipe.trainer)
    with pytest.raises(ConfigError, match="trainer"):
        set_parallel(recipe)


def test_small_files_are_merged_into_a_recipe():
    """A recipe's parallel block may come from a small file that is merged into it."""
    recipe = OmegaConf.create(
        {"num_device": 3, **yaml.safe_load(documents.PARALLEL_BLOCKS["cluster: local"])}
    )
    slurm = OmegaConf.create(documents.PARALLEL_BLOCKS["configuration: SLURM"])
    set_parallel(OmegaConf.merge(recipe, slurm).parallel)
    assert get_parallel_config().options["job_script_prologue"][0] == "module load cuda"
    recipe.parallel.n_workers = "${num_device}"
    set_parallel(recipe.parallel)
    assert get_parallel_config().n_workers == 3


@pytest.mark.parametrize(
    "path",
    [
        "espnet3/parallel/parallel.py",
        "espnet3/parallel/env_provider.py",
        "espnet3/parallel/inference_provider.py",
        "espnet3/parallel/base_runner.py",
        "espnet3/components/data/collect_stats.py",
        "espnet3/systems/base/inference_provider.py",
        "espnet3/systems/base/inference_runner.py",
    ],
)
def test_every_file_that_the_documents_name_is_there(path):
    """Each module that the documents name by its path exists under that path."""
    assert (REPOSITORY / path).is_file()

"""The configs of a recipe, put together."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.blocks import merge_parallel
from espnet3.systems.configs.loading import find_config, load_configs

FILES = {
    "training": "exp_tag: ctc\ndataset: {train: []}\nparallel: {env: local, n_workers: 2}\n",
    "inference": "model: {_target_: a.b}\ninput_key: speech\n",
    "metrics": "metrics: []\n",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe/conf").mkdir(parents=True)
    for name, text in {**FILES, "parallel_two": "parallel: {env: local, n_workers: 2}\n"}.items():
        (tmp_path / f"recipe/conf/{name}.yaml").write_text(text)
    return tmp_path / "recipe"


def write(recipe: Path, name: str, text: str) -> None:
    (recipe / f"conf/{name}.yaml").write_text(text)


def test_what_a_file_leaves_out_has_a_default(recipe: Path) -> None:
    """Folders follow the recipe's folder and the experiment, whose tag the other configs take from training."""
    configs = load_configs(recipe)
    assert configs["training"].stats_dir == f"{recipe}/exp/stats"
    assert configs["inference"].exp_tag == "ctc"
    assert configs["inference"].inference_dir == f"{recipe}/exp/ctc/inference"
    assert configs["metrics"].inference_dir == f"{recipe}/exp/ctc/inference"
    assert configs["metrics"].data_dir == f"{recipe}/data"
    assert "demo" not in configs


def test_a_config_with_a_tag_of_its_own_keeps_its_own_folders(recipe: Path) -> None:
    """Nothing is taken from training where the inference config is of another experiment; metrics follow inference."""
    write(recipe, "inference", "exp_tag: ready_made\nmodel: {}\ntest_sets: {a: {}}\n")
    configs = load_configs(recipe)
    assert configs["inference"].inference_dir == f"{recipe}/exp/ready_made/inference"
    assert configs["metrics"].exp_dir == f"{recipe}/exp/ready_made"
    assert configs["metrics"].test_sets == {"a": {}}


def test_the_tag_of_an_experiment_is_the_name_of_its_file(recipe: Path) -> None:
    """A training config without a tag is known by its file's name; without a training, inference.yaml is."""
    write(recipe, "tuned", "dataset: {}\n")
    assert load_configs(recipe, {"training": "tuned"})["training"].exp_dir == f"{recipe}/exp/tuned"
    (recipe / "conf/training.yaml").unlink()
    configs = load_configs(recipe)
    assert configs["inference"].inference_dir == f"{recipe}/exp/inference/inference"
    assert configs["metrics"].inference_dir == f"{recipe}/exp/inference/inference"


def test_a_value_that_is_still_missing_is_named(recipe: Path) -> None:
    """`???` in a config that is asked for is an error with file, line and key; the command line may give the value."""
    write(recipe, "inference", "input_key: speech\ndataset:\n  _target_: a.b\n  path: ???\n")
    with pytest.raises(
        ConfigError, match=r"inference\.yaml, line 4: dataset\.path = \?\?\?: write its value"
    ):
        load_configs(recipe)
    assert load_configs(recipe, overrides=["dataset.path=x"])["inference"].dataset.path == "x"
    assert "training" in load_configs(recipe, check=["training"])


def test_train_yaml_is_the_other_name_of_training_yaml(recipe: Path) -> None:
    """Either name is found; with both, the command line must say which."""
    (recipe / "conf/training.yaml").rename(recipe / "conf/train.yaml")
    assert load_configs(recipe)["training"].exp_tag == "ctc"
    write(recipe, "training", FILES["training"])
    with pytest.raises(ConfigError, match=r"has training\.yaml and train\.yaml: say .* by --training_config"):
        load_configs(recipe)
    assert "training" in load_configs(recipe, {"training": "train"})


def test_a_small_file_is_merged_into_every_block(recipe: Path) -> None:
    """All stages get the small file's values; a block's other keys stay."""
    write(recipe, "parallel_three", "parallel: {n_workers: 3}\n")
    write(recipe, "training", FILES["training"].replace("n_workers: 2", "setup_timeout: 9"))
    configs = load_configs(recipe, parallel="parallel_three")
    assert configs["training"].parallel == {"env": "local", "setup_timeout": 9, "n_workers": 3}
    assert configs["inference"].parallel == {"n_workers": 3}


def test_overrides_come_last_and_reach_lists(recipe: Path) -> None:
    """The command line wins over files, defaults and the small file; a number names an entry of a list."""
    write(recipe, "inference", "dataset: {test: [{name: a, data_src_args: {n: 1}}]}\n")
    overrides = ["parallel.n_workers=5", "data_dir=elsewhere", "dataset.test.0.data_src_args.n=7"]
    configs = load_configs(recipe, {"inference": None}, parallel="parallel_two", overrides=overrides)
    assert configs["inference"].parallel.n_workers == 5
    assert configs["inference"].data_dir == "elsewhere"
    assert configs["inference"].dataset.test[0].data_src_args.n == 7


@pytest.mark.parametrize(
    ("overrides", "parallel", "said"),
    [
        (["parallel.n_workers=0"], None, r"the command line: parallel\.n_workers = 0: must be"),
        (["exp_dir=${nope}"], None, r"the command line: exp_dir: .*'nope' not found"),
        ([], "wrong", r"wrong\.yaml, line 2: parallel\.n_worker = 3: unknown key"),
    ],
)
def test_the_place_of_a_mistake_is_where_the_value_came_from(
    recipe: Path, overrides: list[str], parallel: str | None, said: str
) -> None:
    """A wrong value is looked for where it was written: on the command line, or in the small file."""
    write(recipe, "wrong", "parallel:\n  n_worker: 3\n")
    with pytest.raises(ConfigError, match=said):
        load_configs(recipe, parallel=parallel, overrides=overrides)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("parallel.n_workers=[1", r"override 'parallel\.n_workers="),
        ("parallel.n_workers=${", r"override 'parallel\.n_workers="),
        ("parallell.n_workers=4", "Did you mean 'parallel'"),
        ("zzz=4", "They have .*exp_tag, "),
        ("parallel.n_workers", "must read key=value"),
    ],
)
def test_a_wrong_override_is_named(recipe: Path, override: str, said: str) -> None:
    """A value that is no YAML, half an interpolation and a typo in a key are errors that show what was typed."""
    with pytest.raises(ValueError, match=said):
        load_configs(recipe, overrides=[override])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("inference", "model: {}\nbatchsize: 4\n", r"line 2: batchsize: unknown key.*'batch_size'"),
        ("training", "datset: {}\n", r"training\.yaml, line 1: datset: unknown key. Did you mean 'dataset'"),
        ("training", "paralel: {env: local}\n", "Did you mean 'parallel'"),
        ("demo", "modell: {}\n", r"demo\.yaml, line 1: modell"),
    ],
)
def test_a_slip_in_a_key_is_refused(recipe: Path, name: str, text: str, said: str) -> None:
    """A key that is nearly one that a stage reads does not pass as a key of the recipe's own."""
    write(recipe, name, text)
    with pytest.raises(ConfigError, match=said):
        load_configs(recipe)


@pytest.mark.parametrize(
    "text",
    ["datasets: 1\nx: ${datasets}\n", "num_device: 1\nminimum: 5\nstats: 1\n", "models: 1\nmodel: {}\n"],
)
def test_keys_of_the_recipes_own_are_kept(recipe: Path, text: str) -> None:
    """A key that something refers to, one like no other, and one beside what it is like, are the recipe's business."""
    write(recipe, "training", text)
    assert "training" in load_configs(recipe)


def test_a_small_file_holds_its_block_alone(recipe: Path) -> None:
    """A whole config in the small file's place is refused."""
    with pytest.raises(ValueError, match="must hold the block 'parallel' and nothing else"):
        load_configs(recipe, parallel="training")


@pytest.mark.parametrize("name", ["parallel_two", "parallel_two.yaml", "conf/parallel_two.yaml"])
def test_a_config_is_found_by_its_name(recipe: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare name, the file name and the path in the recipe are one config; a user's own file comes first."""
    assert find_config(name, recipe) == recipe / "conf/parallel_two.yaml"
    with pytest.raises(FileNotFoundError, match=r"metrics\.yaml, parallel_two\.yaml"):
        find_config("parallel_twoo", recipe)
    monkeypatch.chdir(recipe / "conf")
    assert find_config("parallel_two.yaml", recipe) == Path("parallel_two.yaml")


@pytest.mark.parametrize(
    ("own", "small", "merged"),
    [
        (None, {"env": "local", "n_workers": 2}, {"env": "local", "n_workers": 2}),
        (
            {"env": "slurm", "options": {"queue": "gpu"}, "detached": {"shards": 9}},
            {"n_workers": 16, "detached": {"snapshot": True}},
            {"env": "slurm", "n_workers": 16, "options": {"queue": "gpu"}}
            | {"detached": {"shards": 9, "snapshot": True}},
        ),
        (
            {"env": "slurm", "n_workers": 8, "options": {"queue": "gpu"}},
            {"env": "local"},
            {"env": "local", "n_workers": 8},
        ),
    ],
)
def test_a_small_file_is_merged_into_the_block(own: Any, small: Any, merged: Any) -> None:
    """The file's keys win, the others stay; options stay only with the env that they belong to."""
    config = OmegaConf.create({"parallel": own} if own is not None else {"a": 1})
    merge_parallel(config, OmegaConf.create({"parallel": small}))
    assert config.parallel == merged

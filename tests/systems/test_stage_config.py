"""Stage configs: found by name, read, overridden."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.components.instantiate import as_dict
from espnet3.systems.base.blocks import merge_parallel
from espnet3.systems.configs.loading import find_config


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe/conf").mkdir(parents=True)
    (tmp_path / "recipe/conf/parallel_local.yaml").write_text("parallel: {env: local}\n")
    (tmp_path / "recipe/conf/list.yaml").write_text("- 1\n")
    return tmp_path / "recipe"


@pytest.mark.parametrize("name", ["parallel_local", "parallel_local.yaml", "conf/parallel_local.yaml"])
def test_a_config_is_found_by_its_name(recipe: Path, name: str) -> None:
    """The bare name, the file name and the path in the recipe are one config; another name gets those there are."""
    assert find_config(name, recipe) == recipe / "conf/parallel_local.yaml"
    with pytest.raises(FileNotFoundError, match=r"list\.yaml, parallel_local\.yaml"):
        find_config("parallel_slrum", recipe)


def test_a_path_from_the_current_folder_comes_first(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own file of the same name wins over the recipe's."""
    (tmp_path / "parallel_local.yaml").write_text("parallel: {}\n")
    monkeypatch.chdir(tmp_path)
    assert find_config("parallel_local.yaml", recipe) == Path("parallel_local.yaml")


def test_a_config_must_be_a_mapping() -> None:
    """A list is refused with its kind."""
    with pytest.raises(TypeError, match="must be a mapping, not list"):
        as_dict([1])


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

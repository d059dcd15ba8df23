"""The collect_stats stage: splits, folders, what a run is known by."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from espnet3.parallel import ChangedRunError, DetachedRun, ItemError, WorkerSetupError, get_parallel_config
from espnet3.parallel.errors import ConfigError
from espnet3.systems.base.collect_stats import collect_stats
from espnet3.systems.base.system import BaseSystem

WAVES = "tests.components.waves"


def entry(**arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{WAVES}.Noise", "data_src_args": arguments}


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {
        "dataset": {"train": [entry(n=6), entry(n=3, first=50)], "valid": [entry(n=2, first=90)]},
        "stats_dir": str(tmp_path / "stats"),
        "features": {"_target_": f"{WAVES}.Frames"},
        "collect_stats": {"progress": False, "async_specs_dir": str(tmp_path / "specs")},
    }


def test_each_split_has_a_folder(config: dict[str, Any], tmp_path: Path) -> None:
    """The stage leaves statistics and shapes of train and valid, each in a folder of its own, and returns them."""
    found = BaseSystem(training_config=config).run(["collect_stats"])["collect_stats"]
    assert sorted(found) == ["train", "valid"]
    for split, ids in (
        ("train", ["u0", "u1", "u2", "u3", "u4", "u5", "u50", "u51", "u52"]),
        ("valid", ["u90", "u91"]),
    ):
        folder = tmp_path / "stats" / split
        assert [line.split()[0] for line in (folder / "feats_shape").read_text().splitlines()] == ids
        assert int(numpy.load(folder / "feats_stats.npz")["count"]) == found[split]["feats"].count


def test_the_same_call_again_computes_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    """Another number of workers, a model to be trained and other test sets go on with what is there."""
    before = collect_stats(config)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "stats").glob("*/split.*/done")}
    config["parallel"] = {"env": "local", "n_workers": 2}
    config["model"] = {"_target_": "some.Model"}
    config["dataset"]["test"] = [{"name": "a", **entry(n=1)}]
    again = collect_stats(config)
    assert (again["train"]["feats"].sum == before["train"]["feats"].sum).all()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert get_parallel_config() is None


def test_other_features_are_another_run(config: dict[str, Any]) -> None:
    """Statistics of other features in the same folder are refused, with the difference."""
    collect_stats(config)
    config["features"]["scale"] = 2.0
    with pytest.raises(ChangedRunError, match="scale"):
        collect_stats(config)


def test_detached_jobs_and_the_stage_again(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With async_mode the stage submits; run again when the jobs are done it writes the files, computing nothing."""
    monkeypatch.chdir(tmp_path)  # the specs' default folder is in the current one
    del config["dataset"]["valid"]
    config["parallel"] = {"env": "local", "n_workers": 2}
    config["collect_stats"]["async_mode"] = True
    run = collect_stats(config)["train"]
    assert isinstance(run, DetachedRun)
    try:
        assert run.wait(600).done, dict(run.logs())
    finally:
        run.cancel()
    del config["collect_stats"]["async_mode"]
    again = collect_stats(config)["train"]["feats"]
    config["stats_dir"] = str(tmp_path / "other")
    assert (collect_stats(config)["train"]["feats"].sum_square == again.sum_square).all()
    for name in ("feats_stats.npz", "feats_shape"):
        here, there = (tmp_path / folder / "train" / name for folder in ("stats", "other"))
        assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stats_dir": None}, "the training config has no 'stats_dir'"),
        ({"dataset": {"test": []}}, "no entries for train or valid"),
        ({"parallel": {"env": "local", "n_workers": 0}}, "n_workers = 0"),
        ({"trainer": {"env": "local"}}, "belongs to parallel, not to trainer"),
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, Any], change: dict[str, Any], said: str) -> None:
    """What is missing or in the wrong block is said before anything is computed."""
    config.update(change)
    with pytest.raises(ConfigError, match=said):
        collect_stats(config)


def test_something_must_compute_the_features(config: dict[str, Any]) -> None:
    """Without `features` the model must have `collect_feats`; without either the config lacks a block."""
    features = config.pop("features")
    with pytest.raises(ConfigError, match="neither 'features' nor 'model'"):
        collect_stats(config)
    config["model"] = features
    with pytest.raises(WorkerSetupError, match="TypeError: Frames has no method collect_feats"):
        collect_stats(config)


def test_a_feature_needs_its_field(config: dict[str, Any]) -> None:
    """`input_key` names the field; one that items lack is the item's error, with those it has."""
    config["input_key"] = "audio"
    with pytest.raises(
        ItemError, match=r"Input key 'audio' not found in dataset item \(it has 'utt_id', 'speech', 'text'\)"
    ):
        collect_stats(config)

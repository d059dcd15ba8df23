"""Statistics: the right ones, and the same bytes however they were computed."""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest

from espnet3.components.data.collect_stats import CollectStatsProvider, CollectStatsRunner
from espnet3.parallel import ItemError, set_parallel
from tests.components.waves import Frames, Noise

WAVES = "tests.components.waves"


def config(features: dict[str, Any] | None = None, **dataset: Any) -> dict[str, Any]:
    return {
        "dataset": {"train": [{"_target_": f"{WAVES}.Noise", "data_src_args": dataset}]},
        "split": "train",
        "features": features or {"_target_": f"{WAVES}.Frames"},
    }


def collect(folder: Path, made_of: dict[str, Any] | None = None, n: int = 40, **options: Any) -> Any:
    runner = CollectStatsRunner(
        CollectStatsProvider(made_of or config()),
        output_dir=folder,
        shard_subdir="train",
        progress=False,
        async_specs_dir=folder / "specs",
        **options,
    )
    return runner(range(n))


def files(folder: Path) -> dict[str, bytes]:
    names = ("feats_stats.npz", "feats_shape", "speech_shape", "stats_keys", "batch_keys")
    return {name: (folder / "train" / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    collect(folder)
    return files(folder)


def test_the_figures_are_those_of_the_features(tmp_path: Path) -> None:
    """Count, sum and sum of squares are the correctly rounded sums over all items, returned and in the file."""
    stats = collect(tmp_path)["feats"]
    items = [Frames()(Noise()[k]["speech"]) for k in range(40)]
    assert stats.count == sum(map(len, items))
    for k in range(7):
        assert stats.sum[k] == math.fsum(one.sum(axis=0)[k] for one in items)
        assert stats.sum_square[k] == math.fsum((one * one).sum(axis=0)[k] for one in items)
    saved = numpy.load(tmp_path / "train/feats_stats.npz")
    assert sorted(saved) == ["count", "sum", "sum_square"]
    assert saved["count"] == stats.count and (saved["sum"] == stats.sum).all()
    assert saved["sum_square"].dtype == numpy.float64


def test_shapes_are_those_of_inputs_and_features_in_the_order_of_the_data(tmp_path: Path) -> None:
    """Each shape file has a line for every item; the keys name features and inputs apart."""
    collect(tmp_path, n=3)
    lengths = [len(Noise()[k]["speech"]) for k in range(3)]
    assert (tmp_path / "train/speech_shape").read_text() == "".join(
        f"u{k} {n}\n" for k, n in enumerate(lengths)
    )
    expected = "".join(f"u{k} {n // 100},7\n" for k, n in enumerate(lengths))
    assert (tmp_path / "train/feats_shape").read_text() == expected
    assert (tmp_path / "train/stats_keys").read_text() == "feats\n"
    assert (tmp_path / "train/batch_keys").read_text() == "speech\n"


@pytest.mark.parametrize(("workers", "batch_size"), [(1, 16), (2, 7)], ids=str)
def test_workers_and_batches_never_change_a_byte(
    alone: dict[str, bytes], tmp_path: Path, workers: int, batch_size: int | None
) -> None:
    """Any number of workers and any batch size, which also cuts other shards, leave the same files."""
    set_parallel({"env": "local", "n_workers": workers})
    collect(tmp_path, batch_size=batch_size)
    assert files(tmp_path) == alone


def test_a_failed_item_stops_the_run_or_is_left_out(tmp_path: Path) -> None:
    """By default an item's error names it; recorded, the item is in no file and in no sum."""
    with pytest.raises(ItemError, match="item 3 failed.*bad audio"):
        collect(tmp_path / "raise", config(bad=3), n=5)
    recorded = collect(tmp_path / "record", config(bad=3), n=5, on_error="record")["feats"]
    rest = sum(len(Noise()[k]["speech"]) // 100 for k in (0, 1, 2, 4))
    assert recorded.count == rest
    assert "u3 " not in (tmp_path / "record/train/speech_shape").read_text()


def test_a_model_collects_several_features(tmp_path: Path) -> None:
    """`collect_feats` is given a batch of one with lengths; padding is cut off; without frames, items count."""
    made_of = config()
    made_of["model"] = {"_target_": f"{WAVES}.Model"}
    del made_of["features"]
    stats = collect(tmp_path, made_of, n=4)
    assert sorted(stats) == ["energy", "feats"]
    assert stats["energy"].count == 4
    assert stats["feats"].count == sum(len(Noise()[k]["speech"]) // 10 for k in range(4))
    assert numpy.isfinite(stats["feats"].sum).all()
    assert (tmp_path / "train/energy_shape").read_text().splitlines()[0] == "u0 1,1"


def test_values_without_a_sum_are_the_items_error(tmp_path: Path) -> None:
    """A feature that would spoil every sum is named with its item."""
    made_of = config({"_target_": f"{WAVES}.Holes", "value": "nan"})
    with pytest.raises(ItemError, match="the feature 'feats' of item 'u0' holds a value that is not finite"):
        collect(tmp_path, made_of, n=2)


def test_items_with_one_id_are_refused(tmp_path: Path) -> None:
    """Two entries that both have an item u0 are an error of the merge, which names it."""
    made_of = config()
    made_of["dataset"]["train"] *= 2
    with pytest.raises(ValueError, match="two items have the id 'u0'"):
        collect(tmp_path, made_of, n=80)


def test_a_split_without_items_has_empty_files(tmp_path: Path) -> None:
    """No indices leave no statistics, and say so by empty lists of names."""
    assert collect(tmp_path, config(n=0), n=0) == {}
    assert (tmp_path / "train/stats_keys").read_text() == ""

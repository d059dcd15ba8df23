"""Statistics of a dataset's features: count, sum, sum of squares, and the shape of every item.

Items are spread over workers like those of any runner. Each shard writes the shapes of its items and the exact sums
of their features; `merge` puts them together. Sums of whole numbers do not depend on who added what first, so the files
are the same, byte for byte, for any number of workers, batch size or cut into shards, with a driver or detached, and
after a run that was killed went on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.data_organizer import organizer_of, same_data
from espnet3.components.data.features import arrays_of, features_of_list, make_features
from espnet3.components.data.files import utterance_id
from espnet3.components.data.stats_files import FeatureStats, ItemStats, ItemSums, ShardWriter, merge_stats
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider


class CollectStatsProvider(EnvironmentProvider):
    """Builds one split of a config's `dataset`, and what computes its features.

    Args:
        config: A mapping with `dataset`, `features` or `model`, `input_key`, `split` and, where entries need it,
            `recipe_dir`; see `espnet3.systems.base.collect_stats.collect_stats`. With `dataset_fingerprint`, a process
            whose dataset has another fingerprint refuses to work on it.
    """

    def build_env_local(self) -> dict[str, Any]:
        """Return `dataset` and `features`; a process that sees other data than the driver did is an error."""
        dataset = same_data(split_of(self.config), self.config.get("dataset_fingerprint"))
        return {"dataset": dataset, "features": make_features(self.config)}


def split_of(config: Any) -> Any:
    """Return the split that a config names."""
    dataset = getattr(organizer_of(config), str(config["split"]), None)
    if dataset is None:
        raise ValueError(f"the block 'dataset' has no entries for the split {config['split']!r}")
    return dataset


class CollectStatsRunner(BaseRunner):
    """Collects statistics over the indices of one split.

    In the run folder, `<output_dir>/<shard_subdir>`, it leaves what trainers read: `<feature>_stats.npz` with `count`,
    `sum` and `sum_square`; `<name>_shape` with a line for each item, of inputs and of features; the names in
    `stats_keys` (features) and `batch_keys` (inputs). With `on_error="record"`, failed items are in none of them.

    The call returns the statistics by the features' names (`FeatureStats`).
    """

    @staticmethod
    def forward(idx: Any, dataset: Any, features: Any) -> ItemStats:
        """Return what one item adds."""
        item = dataset[idx]
        return _stats_of(idx, item, features(item))

    @staticmethod
    def batch_forward(indices: Sequence[Any], dataset: Any, features: Any) -> list[ItemStats]:
        """Return what each item of a batch adds; features are computed together where that can be done."""
        items = [dataset[idx] for idx in indices]
        found = features_of_list(features, items)
        return [_stats_of(idx, item, one) for idx, item, one in zip(indices, items, found, strict=True)]

    @staticmethod
    def open_writers(shard_dir: Any, **env: Any) -> Any:
        """Begin a shard: no file is open before its first item says what there is."""
        return ShardWriter(Path(shard_dir))

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        """Write an item's shapes and add its sums."""
        writers.add(result)

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        """Write the shard's sums."""
        writers.close()

    def merge(self, shard_dirs: list[Path]) -> dict[str, FeatureStats]:
        """Put the shards' files together, and return the statistics."""
        folder = shard_dirs[0].parent if shard_dirs else Path(self.output_dir or ".") / self.shard_subdir
        return merge_stats(folder, shard_dirs)


def _stats_of(idx: Any, item: Any, features: Mapping[str, Any]) -> ItemStats:
    import numpy  # of the extra `recipe`; a driver that only asks how a run is needs none

    uid = item.get("utt_id", idx) if isinstance(item, Mapping) else idx
    shapes = {name: _shape(value) for name, value in arrays_of(item).items()}
    sums = {}
    for name, value in features.items():
        # in one layout, since that decides in which order numpy adds
        frames = numpy.ascontiguousarray(value, dtype=numpy.float64)
        if frames.ndim == 0:
            raise ValueError(f"the feature {name!r} of item {uid!r} is a single number: it must have frames")
        if not numpy.isfinite(frames).all():
            raise ValueError(f"the feature {name!r} of item {uid!r} holds a value that is not finite")
        with numpy.errstate(over="ignore"):  # looked for below
            total, square = frames.sum(axis=0), (frames * frames).sum(axis=0)
        if not (numpy.isfinite(total).all() and numpy.isfinite(square).all()):
            raise ValueError(f"the feature {name!r} of item {uid!r} is so large that its sums are no doubles")
        shapes[name] = _shape(frames)
        sums[name] = ItemSums(len(frames), frames.shape[1:], total, square)
    return ItemStats(utterance_id(uid), shapes, sums)


def _shape(array: Any) -> str:
    return ",".join(str(size) for size in array.shape)

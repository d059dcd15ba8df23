"""Statistics of a dataset's features: count, sum, sum of squares, and the shape of every item.

Items are spread over workers like those of any runner. Each shard writes the shapes of its items and the exact sums
of their features; `merge` puts them together. Sums of whole numbers do not depend on who added what first, so the files
are the same, byte for byte, for any number of workers, batch size or cut into shards, with a driver or detached, and
after a run that was killed went on.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from espnet3.components.data.data_organizer import organizer_of, same_data
from espnet3.components.data.exact_sums import ExactSums
from espnet3.components.data.files import answers, check_each, utterance_id, write_atomic, write_text_atomic
from espnet3.components.instantiate import instantiate_block
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.checks import loaded
from espnet3.parallel.env_provider import EnvironmentProvider

logger = logging.getLogger(__name__)

_LENGTHS = "_lengths"
_ONLY = "feats"  # the name of a feature without one of its own
_SUMS = "sums.json"

Features = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
"""Items to the features of each, by name."""


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
        """Return the shapes and sums of one item."""
        return CollectStatsRunner.batch_forward([idx], dataset, features)[0]

    @staticmethod
    def batch_forward(indices: Sequence[Any], dataset: Any, features: Any) -> list[ItemStats]:
        """Return the shapes and sums of each item of a batch; features are computed together where that can be done."""
        items = [dataset[idx] for idx in indices]
        return [_stats_of(*each) for each in zip(indices, items, features(items), strict=True)]

    @staticmethod
    def open_writers(shard_dir: Any, **env: Any) -> Any:
        """Begin a shard: the lines of its shapes by name, and its sums."""
        return {"folder": Path(shard_dir), "lines": defaultdict(list), "totals": _Totals()}

    @staticmethod
    def write_record(writers: Any, result: Any, state: Any, **env: Any) -> None:
        """Keep an item's shapes and add its sums."""
        for name, shape in result.shapes.items():
            writers["lines"][name].append(f"{result.uid} {shape}\n")
        for name, stats in result.sums.items():
            total = writers["totals"].of(name, stats.sum.shape, f"item {result.uid!r}")
            total["count"] += stats.count
            total["sums"].add((stats.sum, stats.sum_square))

    @staticmethod
    def close_writers(writers: Any, state: Any, **env: Any) -> None:
        """Write the shard's shapes and sums."""
        folder, lines, totals = writers["folder"], writers["lines"], writers["totals"]
        for name, each in lines.items():
            (folder / f"{name}_shape").write_text("".join(each), encoding="utf-8")
        content = {
            "inputs": [name for name in lines if name not in totals],
            "features": {name: {**each, "sums": each["sums"].totals} for name, each in totals.items()},
        }
        (folder / _SUMS).write_text(json.dumps(content), encoding="utf-8")

    def merge(self, shard_dirs: list[Path]) -> dict[str, FeatureStats]:
        """Put the shards' files together, in the order of the shards, and return the statistics."""
        folder = shard_dirs[0].parent if shard_dirs else Path(self.output_dir or ".") / self.shard_subdir
        totals, inputs = _Totals(), set[str]()
        for shard in shard_dirs:
            content = json.loads((shard / _SUMS).read_text(encoding="utf-8"))
            inputs.update(content["inputs"])
            for name, one in content["features"].items():
                total = totals.of(name, one["shape"], str(shard))
                total["count"] += one["count"]
                total["sums"].merge(ExactSums(one["sums"]))
        names = sorted(inputs - set(totals))
        for name in (*names, *sorted(totals)):
            _concatenate([shard / f"{name}_shape" for shard in shard_dirs], folder / f"{name}_shape")
        stats = {name: _write_sums(folder / f"{name}_stats.npz", **totals[name]) for name in sorted(totals)}
        write_text_atomic(folder / "stats_keys", "".join(f"{name}\n" for name in stats))
        write_text_atomic(folder / "batch_keys", "".join(f"{name}\n" for name in names))
        logger.info("statistics of %s in %s", ", ".join(stats) or "no feature", folder)
        return stats


def _stats_of(idx: Any, item: Any, features: Mapping[str, Any]) -> ItemStats:
    import numpy  # of the extra `recipe`; a driver that only asks how a run is needs none

    uid = item.get("utt_id", idx) if isinstance(item, Mapping) else idx
    shapes = {name: _shape(value) for name, value in _arrays_of(item).items()}
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
        sums[name] = FeatureStats(len(frames), total, square)
    return ItemStats(utterance_id(uid), shapes, sums)


def _shape(array: Any) -> str:
    return ",".join(str(size) for size in array.shape)


# features of an item


def make_features(config: Any) -> Features:
    """Return the function from items to the features of each by name.

    The block `features` of the config makes an object that is called with the fields `input_key` (default `speech`) of
    an item and returns an array (frames, dimensions), or several by name. One with `supports_batch = True` is given
    lists, one entry for each item of a batch, and returns a list; its answer for an item must not depend on the others,
    to the last bit.

    Without that block, the block `model` makes an object with the method `collect_feats`, called with the arrays of a
    batch of one item and their lengths (`speech`, `speech_lengths`, ...), which returns arrays and lengths likewise; a
    torch module is given tensors, on its own device. A batch has one item, because padding
    beside a longer one may change the last bits of its features.
    """
    if config.get("features") is not None:
        keys = config.get("input_key") or "speech"
        compute = instantiate_block(config, "features")
        return partial(_computed, compute, [keys] if isinstance(keys, str) else list(keys))
    model = instantiate_block(config, "model")
    if not callable(getattr(model, "collect_feats", None)):
        raise TypeError(
            f"{type(model).__name__} has no method collect_feats: write it, or name what computes the features in a "
            "block 'features'"
        )
    torch = loaded("torch")  # only a process that has loaded it can hold a module
    if torch is None or not isinstance(model, torch.nn.Module):
        return partial(_collected, model.collect_feats)
    return partial(_collected, partial(_in_torch, torch, model.eval()))


def _computed(
    compute: Any, keys: Sequence[str], items: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    found = answers(compute, items, keys, {}, lists=False)
    check_each(found, len(items), type(compute).__name__)
    return [each if isinstance(each, Mapping) else {_ONLY: each} for each in found]


def _collected(collect: Any, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    import numpy

    features: list[Mapping[str, Any]] = []
    for item in items:
        arrays = _arrays_of(item)
        batch = {name: numpy.asarray(value)[None] for name, value in arrays.items()}
        batch |= {f"{name}{_LENGTHS}": numpy.array([len(value)]) for name, value in arrays.items()}
        found = collect(**batch)
        lengths = {name: found.get(f"{name}{_LENGTHS}") for name in found if not name.endswith(_LENGTHS)}
        # without lengths there are no frames: the item is one
        features.append(
            {
                name: found[name][0][None] if length is None else found[name][0][: int(length[0])]
                for name, length in lengths.items()
            }
        )
    return features


def _in_torch(torch: Any, model: Any, **batch: Any) -> dict[str, Any]:
    device = next(iter(model.parameters()), torch.empty(0)).device
    with torch.no_grad():
        found = model.collect_feats(
            **{name: torch.as_tensor(value, device=device) for name, value in batch.items()}
        )
    return {
        name: value.detach().cpu().numpy() if hasattr(value, "detach") else value
        for name, value in found.items()
    }


def _arrays_of(item: Any) -> dict[str, Any]:
    fields = item if isinstance(item, Mapping) else {}
    return {name: value for name, value in fields.items() if getattr(value, "shape", ())}


# the files of one shard, and of a whole split


@dataclass(frozen=True, slots=True)
class FeatureStats:
    """Statistics of one feature over a split.

    Attributes:
        count: Frames; of a feature without frames, items.
        sum: Their sum in each dimension, an array.
        sum_square: The sum of their squares.
    """

    count: int
    sum: Any
    sum_square: Any


@dataclass(frozen=True, slots=True)
class ItemStats:
    """The shapes and sums of one item."""

    uid: str
    shapes: Mapping[str, str]  # of inputs and features by name, as in "120,80"
    sums: Mapping[str, FeatureStats]  # of features by name


class _Totals(dict[str, dict[str, Any]]):
    # feature -> the shape of its frames, their number, and exact sums: of the values, then of their squares

    def of(self, name: str, shape: Sequence[int], where: str) -> dict[str, Any]:
        known = self.setdefault(name, {"shape": tuple(shape), "count": 0, "sums": ExactSums()})
        if known["shape"] != tuple(shape):
            raise ValueError(
                f"{where}: a frame of the feature {name!r} has the shape {tuple(shape)}, and had {known['shape']} "
                "before: features are summed frame by frame, so that all frames must be alike"
            )
        return known


def _write_sums(path: Path, shape: tuple[int, ...], count: int, sums: ExactSums) -> FeatureStats:
    import numpy  # of the extra `recipe`

    total, square = numpy.array(sums.values()).reshape(2, *shape)
    write_atomic(path, lambda file: numpy.savez(file, count=count, sum=total, sum_square=square))
    return FeatureStats(count, total, square)


def _concatenate(parts: Sequence[Path], target: Path) -> None:
    lines: dict[str, str] = {}
    for part in filter(Path.is_file, parts):  # a shard whose items all lack it has no such file
        for line in part.read_text(encoding="utf-8").splitlines(keepends=True):
            uid = line.partition(" ")[0]
            if uid in lines:
                raise ValueError(f"two items have the id {uid!r}: a line of {target.name} is one item")
            lines[uid] = line
    write_text_atomic(target, "".join(lines.values()))

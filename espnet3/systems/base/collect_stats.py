"""The collect_stats stage: statistics of the training and the validation data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from espnet3.components.data.collect_stats import CollectStatsProvider, CollectStatsRunner, split_of
from espnet3.components.data.data_organizer import SPLITS, fingerprint_of, indices_of
from espnet3.components.instantiate import as_dict
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.configs.mistakes import NEEDED, StageConfigError, require

logger = logging.getLogger(__name__)

_OF_A_SPLIT = ("train", "valid")
_SEEN = ("features", "model", "input_key", "recipe_dir")


def collect_stats(config: Any) -> dict[str, Any]:
    """Collect statistics of `dataset.train` and `dataset.valid` into `<stats_dir>/train` and `<stats_dir>/valid`.

    The config has `dataset` (a split without entries is left out), `stats_dir`, and `features` or `model`, see
    `make_features`; the page "All keys of all configs" has the rest. With `async_mode` in the block `collect_stats`,
    the stage run again without it when the jobs are done, or `espnet3-parallel merge` of each folder, writes the files.
    The block `parallel` is registered while the stage runs.

    Return, by split, what the runner returned: the statistics by feature, or a detached run. A wrong block or a missing
    key is a ConfigError, a failed item an ItemError.
    """
    whole = as_dict(config)
    require(whole, "training", NEEDED["collect_stats"])
    splits = [split for split in _OF_A_SPLIT if whole["dataset"].get(split)]
    if not splits:
        said = f"the block 'dataset' has no entries for {' or '.join(_OF_A_SPLIT)}"
        raise StageConfigError("training", "dataset", said)
    if whole.get("features") is None and whole.get("model") is None:
        said = "the training config has neither 'features' nor 'model' to say what the statistics are of"
        raise StageConfigError("training", "features", said)
    with stage_parallel(config):
        return {split: _collect(whole, split) for split in splits}


def _collect(whole: Mapping[str, Any], split: str) -> Any:
    # the other splits, and how the work is done, are no part of what a run is known by
    seen = {key: whole[key] for key in _SEEN if whole.get(key) is not None}
    if "features" in seen:
        seen.pop("model", None)  # another model needs no new statistics
    own = {key: value for key, value in whole["dataset"].items() if key == split or key not in SPLITS}
    seen |= {"dataset": own, "split": split}
    dataset = split_of(seen)
    if (fingerprint := fingerprint_of(dataset)) is not None:
        seen["dataset_fingerprint"] = fingerprint
    options = {"batch_size": whole.get("collect_stats_batch_size"), **(whole.get("collect_stats") or {})}
    provider = CollectStatsProvider(seen)
    runner = CollectStatsRunner(provider, output_dir=whole["stats_dir"], shard_subdir=split, **options)
    indices = indices_of(dataset)
    logger.info("collect_stats %s: %d items, statistics in %s", split, len(indices), whole["stats_dir"])
    return runner(indices)

"""The infer stage: decode every test set of an inference config."""

from __future__ import annotations

import logging
import os.path
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from espnet3.components.data.data_organizer import (
    fingerprint_of,
    folder_name,
    indices_of,
    is_organized,
    organizer_of,
)
from espnet3.components.data.files import sha256_of
from espnet3.components.instantiate import as_dict, locate, texts_in
from espnet3.parallel.checks import Whole, argument
from espnet3.parallel.records import ItemFailure
from espnet3.systems.base.artifacts import check_artifacts
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.base.scp import IDX_KEY, key_list, output_keys_of
from espnet3.systems.configs.mistakes import NEEDED, StageConfigError, require, wrong

logger = logging.getLogger(__name__)

_LIMIT = Whole(least=1, called="a positive number of items")
PROVIDER = "espnet3.systems.base.inference_provider.InferenceProvider"
RUNNER = "espnet3.systems.base.inference_runner.InferenceRunner"

# How and where the run happens, not what it computes: the provider does not see these, so that another number of
# workers resumes a run folder instead of being refused as a changed config.
_HOW = ("parallel", "provider", "runner", "batch_size", "limit")
_WHERE = ("test_sets", "create_dataset", "inference_dir", "text_key")


@dataclass(frozen=True, slots=True)
class InferResult:
    """The outcome of the infer stage for one test set."""

    folder: Path  # where the `.scp` files are
    items: int  # of the run
    failed: int  # listed in `errors.jsonl`
    seconds: float  # wall time, with the start of the workers
    run: Any  # returned by the runner: results, or a detached run


def infer(config: Any) -> dict[str, InferResult]:
    """Run inference over the test sets and write `<inference_dir>/<test set>/<key>.scp`.

    The config has `model`, `dataset`, `inference_dir` and `input_key`; the page "All keys of all configs" has the rest,
    of which `output_fn`, `model_kwargs`, `evaluate`, `idx_key`, `output_keys`, `text_key` and `batch_size` are as in
    `InferenceRunner`. Without `test_sets` all of `dataset.test` are decoded, or of one dataset by `_target_` one set
    called `test`.

    With `async_mode` in the block `runner` the items are submitted as detached jobs, and `espnet3-parallel merge` of
    the test set's folder, or the stage run again without it, writes the files when they are done. The block `parallel`
    is registered while the stage runs.

    Return what was done, by the name of the test set. A wrong block or a missing key is a ConfigError.
    """
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    require(config, "inference", NEEDED["infer"])
    check_artifacts(config.get("output_artifacts"), "inference", "output_artifacts")
    with stage_parallel(config):
        return {name: _infer_one(config, name, changes) for name, changes in _test_sets(config).items()}


def _test_sets(config: DictConfig) -> dict[str, Mapping[str, Any]]:
    sets = config.get("test_sets")
    if is_organized(config.dataset):
        entries = {str(entry.get("name")): entry for entry in config.dataset.get("test") or ()}
        known = organizer_of(config).test_names
        for name in sets or ():
            if name not in known:
                said = f"names {name!r}, which is not in dataset.test; that has {', '.join(known) or 'none'}"
                raise wrong("inference", "test_sets", said)
        wanted = known if sets is None else map(str, sets)
        # train and valid stay out of what the run is known by
        return {name: {"train": None, "valid": None, "test": [entries[name]]} for name in wanted}
    if sets is None:
        return {"test": {}}
    if not isinstance(sets, DictConfig) or not sets:
        said = f"must map names to what differs from the block 'dataset', not {sets!r}"
        raise wrong("inference", "test_sets", said)
    return {folder_name(str(name), "test_sets"): changes or {} for name, changes in sets.items()}


def dataset_of(config: Any, name: str) -> Any:
    """Return the dataset of a test set of an inference config."""
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    known = _test_sets(config)
    if name not in known:
        said = f"the inference config has no test set {name!r} (it has {', '.join(known)})"
        raise StageConfigError("inference", "dataset", said)
    return _one_set(config, name, known[name])[2]


def _one_set(
    config: DictConfig, name: str, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], DictConfig, Any, Any]:
    # Resolved here: an interpolation may point to a key that does not travel with it.
    whole = as_dict(OmegaConf.merge(config, {"dataset": changes}))
    seen = OmegaConf.create({key: value for key, value in whole.items() if key not in (*_HOW, *_WHERE)})
    if is_organized(seen.dataset):
        seen.test_set = name
    provider_class, options = _class_and_options(whole, "provider", PROVIDER)
    return whole, seen, provider_class.build_dataset(seen), partial(provider_class, **options)


def _infer_one(config: DictConfig, name: str, changes: Mapping[str, Any]) -> InferResult:
    whole, seen, dataset, provider = _one_set(config, name, changes)
    folder = Path(whole["inference_dir"]) / name
    if (fingerprint := fingerprint_of(dataset)) is not None:
        seen.dataset_fingerprint = fingerprint
    # weights that were trained anew under the same name would be taken for those that gave the results of before
    named = {text for _, text in texts_in([whole["model"], whole.get("model_kwargs")])}
    if hashes := {path: sha256_of(path)[:16] for path in sorted(named) if os.path.isfile(path)}:
        seen.model_files = hashes
    runner_class, options = _class_and_options(whole, "runner", RUNNER)
    for key in ("idx_key", "output_keys", "text_key", "batch_size"):
        if whole.get(key) is not None:
            options.setdefault(key, whole[key])
    params = {
        "input_key": key_list(whole["input_key"]),
        "output_fn_path": whole.get("output_fn"),
        "model_kwargs": whole.get("model_kwargs") or {},
        **({"evaluate": whole["evaluate"]} if whole.get("evaluate") is not None else {}),
        # With the keys in its env a worker rejects the first bad result, not the driver the last.
        "idx_key": options.get("idx_key", IDX_KEY),
        "output_keys": output_keys_of(**options),
        **({"output_artifacts": whole["output_artifacts"]} if whole.get("output_artifacts") else {}),
    }
    runner = runner_class(provider(seen, params=params), output_dir=folder, **options)
    indices = indices_of(dataset)
    if whole.get("limit") is not None:
        indices = indices[: argument("limit", whole["limit"], _LIMIT)]
    logger.info("infer %s: %d items, outputs in %s", name, len(indices), folder)
    begin = time.perf_counter()
    run = runner(indices)
    seconds = time.perf_counter() - begin
    if runner.async_mode:
        logger.info("submitted; `espnet3-parallel wait %s`, then `merge` of it, writes the files", folder)
    listed = isinstance(run, Sequence) and not runner.async_mode
    failed = sum(isinstance(result, ItemFailure) for result in run) if listed else 0
    return InferResult(folder, len(indices), failed, seconds, run)


def _class_and_options(config: Mapping[str, Any], name: str, default: str) -> tuple[Any, dict[str, Any]]:
    block = config.get(name) or {}
    if not isinstance(block, Mapping):
        said = f"= {block!r}: must be a block with a _target_, or arguments such as {{on_error: record}}"
        raise wrong("inference", name, said)
    options = dict(block)
    return locate(options.pop("_target_", default)), options

"""The infer stage: decode every test set of an inference config."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from espnet3.parallel.checks import Whole, argument
from espnet3.parallel.records import ItemFailure
from espnet3.systems.base.artifacts import check_artifacts
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.base.config import as_dict
from espnet3.systems.base.scp import IDX_KEY, key_list, output_keys_of
from espnet3.systems.configs.mistakes import StageConfigError, require

logger = logging.getLogger(__name__)

PROVIDER = "espnet3.systems.base.inference_provider.InferenceProvider"
RUNNER = "espnet3.systems.base.inference_runner.InferenceRunner"

# How and where the run happens, not what it computes: the provider does not see these, so that
# another number of workers resumes a run folder instead of being refused as a changed config.
_EXECUTION = (
    "parallel",
    "provider",
    "runner",
    "batch_size",
    "limit",
    "test_sets",
    "create_dataset",
    "inference_dir",
    "text_key",
)


@dataclass(frozen=True, slots=True)
class InferResult:
    """The outcome of the infer stage for one test set."""

    folder: Path  # where the `.scp` files are
    items: int  # of the run
    failed: int  # listed in `errors.jsonl`
    seconds: float  # wall time, with the start of the workers
    run: Any  # what the runner returned: the results, or a detached run


def infer(config: Any) -> dict[str, InferResult]:
    """Run inference over the test sets and write `<inference_dir>/<test set>/<key>.scp`.

    The config has:

    - `model`: a block with a `_target_`;
    - `dataset`: either `test: [{name, data_src_args}, ...]`, a list of test sets (`DataOrganizer`), or one block with
      a `_target_`;
    - `inference_dir`: where the outputs go;
    - `input_key`: dataset field or fields for the model;
    - `test_sets` (optional): of `dataset.test`, the names to decode; of a block with a `_target_`, name -> what
      differs for this set. Without it all of `dataset.test`, or one set called `test`;
    - `output_fn`, `model_kwargs`, `evaluate`, `idx_key`, `output_keys`, `text_key`, `batch_size` (optional): see
      `InferenceRunner`;
    - `output_artifacts` (optional): output key -> how outputs that are no text are written, see `check_artifacts`;
    - `limit` (optional): only the first so many items of each set;
    - `provider`, `runner` (optional): blocks with a `_target_` and further arguments of the class,
      such as `on_error` or `resume` of the runner; with `async_mode` of the runner the items are submitted
      as detached jobs, and `espnet3-parallel merge` of the test set's folder, or the stage run again without it, writes
      the files when they are done;
    - `parallel` (optional): registered while the stage runs (`set_parallel`); then what was registered before is
      again.

    Return what was done, by the name of the test set. A wrong block or a missing key is a ConfigError.
    """
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    require(config, "inference", ("dataset", "model", "inference_dir", "input_key"))
    check_artifacts(config.get("output_artifacts"), "inference", "output_artifacts")
    with stage_parallel(config):
        return {name: _infer_one(config, name, changes) for name, changes in _test_sets(config).items()}


def _test_sets(config: DictConfig) -> dict[str, Mapping[str, Any]]:
    sets = config.get("test_sets")
    if is_organized(config.dataset):
        entries = {str(entry.get("name")): entry for entry in config.dataset.get("test") or ()}
        known = organizer_of(config).test_names
        for name in known if sets is None else sets:
            if name not in known:
                raise StageConfigError(
                    "inference",
                    "test_sets",
                    f"test_sets names {name!r}, which is not in dataset.test; that has {', '.join(known) or 'none'}",
                )
        # train and valid stay out of what the run is known by
        return {
            name: {"train": None, "valid": None, "test": [entries[name]]}
            for name in (known if sets is None else map(str, sets))
        }
    if sets is None:
        return {"test": {}}
    if not isinstance(sets, DictConfig) or not sets:
        said = f"test_sets must map names to what differs from the block 'dataset', not {sets!r}"
        raise StageConfigError("inference", "test_sets", said)
    return {folder_name(str(name), "test_sets"): changes or {} for name, changes in sets.items()}


def dataset_of(config: Any, name: str) -> Any:
    """Return the dataset of a test set of an inference config."""
    config = config if isinstance(config, DictConfig) else OmegaConf.create(dict(config))
    known = _test_sets(config)
    if name not in known:
        raise StageConfigError(
            "inference",
            "dataset",
            f"the inference config has no test set {name!r} (it has {', '.join(known)})",
        )
    return _one_set(config, name, known[name])[-1]


def _one_set(
    config: DictConfig, name: str, changes: Mapping[str, Any]
) -> tuple[dict[str, Any], DictConfig, Any]:
    # Resolved here: an interpolation may point to a key that does not travel with it.
    whole = as_dict(OmegaConf.merge(config, {"dataset": changes}))
    seen = OmegaConf.create({key: value for key, value in whole.items() if key not in _EXECUTION})
    if is_organized(seen.dataset):
        seen.test_set = name
    provider_class, _ = _class_and_options(whole.get("provider"), PROVIDER)
    return whole, seen, provider_class.build_dataset(seen)


def _infer_one(config: DictConfig, name: str, changes: Mapping[str, Any]) -> InferResult:
    whole, seen, dataset = _one_set(config, name, changes)
    folder = Path(whole["inference_dir"]) / name
    provider_class, provider_options = _class_and_options(whole.get("provider"), PROVIDER)
    if (fingerprint := fingerprint_of(dataset)) is not None:
        seen.dataset_fingerprint = fingerprint
    if hashes := file_hashes([whole["model"], whole.get("model_kwargs")]):
        seen.model_files = hashes
    runner_class, options = _class_and_options(whole.get("runner"), RUNNER)
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
        "output_keys": output_keys_of(options),
        **({"output_artifacts": whole["output_artifacts"]} if whole.get("output_artifacts") else {}),
    }
    provider = provider_class(seen, params=params, **provider_options)
    runner = runner_class(provider, output_dir=folder, **options)
    indices = _indices(indices_of(dataset), whole.get("limit"))
    logger.info("infer %s: %d items, outputs in %s", name, len(indices), folder)
    begin = time.perf_counter()
    run = runner(indices)
    seconds = time.perf_counter() - begin
    failed = 0
    if runner.async_mode:
        logger.info("submitted; `espnet3-parallel wait %s`, then `merge` of it, writes the files", folder)
    elif isinstance(run, Sequence):
        failed = sum(isinstance(result, ItemFailure) for result in run)
    return InferResult(folder, len(indices), failed, seconds, run)


def _class_and_options(block: Mapping[str, Any] | None, default: str) -> tuple[Any, dict[str, Any]]:
    from hydra.utils import get_class  # here, as in instantiate_block

    options = dict(block or {})
    return get_class(options.pop("_target_", default)), options


_LIMIT = Whole(least=1, called="a positive number of items")


def _indices(indices: Sequence[Any], limit: Any) -> Sequence[Any]:
    if limit is None:
        return indices
    return indices[: argument("limit", limit, _LIMIT)]


def file_hashes(block: Any) -> dict[str, str]:
    """Return a hash of the content of each file whose path is a text in a config's block.

    Without it, weights that were trained anew under the same name would be taken for the ones that gave the results
    of before.
    """
    return {path: sha256_of(path)[:16] for path in sorted(set(_files(block)))}


def _files(block: Any) -> Iterator[str]:
    if isinstance(block, Mapping):
        for value in block.values():
            yield from _files(value)
    elif isinstance(block, (list, tuple)):
        for value in block:
            yield from _files(value)
    elif isinstance(block, str) and _is_file(block):
        yield block


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL
        return False

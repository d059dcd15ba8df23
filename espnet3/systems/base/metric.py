"""The measure stage: metrics over what the infer stage wrote."""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.data.data_organizer import folder_name, indices_of
from espnet3.components.data.files import write_text_atomic
from espnet3.components.instantiate import as_dict, instantiate_block
from espnet3.components.metrics.abs_metric import AbsMetric
from espnet3.systems.base.artifacts import check_artifacts, kept
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.base.inference import dataset_of
from espnet3.systems.base.scp import IDX_KEY, OutputsError, read_aligned, scp_id, scp_value, write_scp
from espnet3.systems.configs.mistakes import NEEDED, StageConfigError, require

logger = logging.getLogger(__name__)

_DATASET = "dataset:"


def measure(config: Any, inference_config: Any = None) -> dict[str, dict[str, Any]]:
    """Compute every metric on every test set and write `<inference_dir>/metrics.json`.

    The config has:

    - `inference_dir`: the folder that the infer stage wrote to;
    - `metrics`: a list of blocks with a `_target_` (a subclass of `AbsMetric`) and its arguments. Where columns have
      other names than the metric expects, the block is `{metric: {...}, inputs: {ref: dataset:text, hyp: best}}`:
      column -> file without `.scp`, or `dataset:` and a field of the test set's own items, which `inference_config`
      names. Its values go to `<test set>/dataset/<field>.scp`, those that are no text to files as `dataset_artifacts`
      (optional) says, a block like `output_artifacts` of inference;
    - `test_sets` (optional): their names (a list, or the mapping of the inference config), or entries
      `dataset.test` with names; without them, every folder in `inference_dir` that holds an `.scp` file;
    - `parallel` (optional): registered while the stage runs, for metrics that use `parallel_map` or a runner.

    Items that failed are in no file and thus in no metric; a metric's entries get their number as `failed_items`.

    Return import path of the metric -> test set -> what the metric returned. A wrong block or a missing key is a
    ConfigError, no file to measure a FileNotFoundError, and a metric that is no `AbsMetric` a TypeError.
    """
    whole = as_dict(config)
    require(whole, "metrics", NEEDED["measure"])
    folder = Path(whole["inference_dir"])
    artifacts = check_artifacts(whole.get("dataset_artifacts"), "metrics", "dataset_artifacts")
    results: dict[str, dict[str, Any]] = {}
    written: defaultdict[str, set[str]] = defaultdict(set)
    with stage_parallel(config):
        test_sets = _test_sets(whole, folder)
        for block in whole["metrics"]:
            metric, inputs = _make(block)
            name = f"{type(metric).__module__}.{type(metric).__qualname__}"
            if name in results:
                raise ValueError(f"metrics: {name} is listed twice; make one with all its arguments")
            fields = {each.removeprefix(_DATASET) for each in inputs.values() if each.startswith(_DATASET)}
            for test_set in test_sets:
                if odd := sorted(fields - written[test_set]):
                    _write_fields(inference_config, test_set, odd, folder / test_set, artifacts)
                    written[test_set].update(odd)
            results[name] = {test_set: _score(metric, inputs, test_set, folder) for test_set in test_sets}
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomic(folder / "metrics.json", text + "\n")
    logger.info("metrics of %s in %s", ", ".join(test_sets), folder / "metrics.json")
    return results


def _test_sets(config: Mapping[str, Any], folder: Path) -> list[str]:
    entries = (config.get("dataset") or {}).get("test") or ()
    if names := config.get("test_sets") or [entry["name"] for entry in entries]:
        return [folder_name(str(name), "test_sets") for name in names]
    found = sorted({path.parent.name for path in folder.glob("*/*.scp")})
    if not found:
        raise OutputsError(f"no folder in {folder} holds an .scp file; run the infer stage first")
    return found


def _make(block: Mapping[str, Any]) -> tuple[AbsMetric, dict[str, str]]:
    inner = block.get("metric", block)
    metric = instantiate_block({"metric": inner}, "metric")
    if not isinstance(metric, AbsMetric):
        made = f"{inner.get('_target_')!r} made a {type(metric).__name__}"
        raise TypeError(f"metrics: {made}, which is no AbsMetric")
    inputs = (block.get("inputs") if "metric" in block else None) or [metric.ref_key, metric.hyp_key]
    pairs = inputs.items() if isinstance(inputs, Mapping) else [(name, name) for name in inputs]
    return metric, {str(column): str(source) for column, source in pairs}


def _write_fields(
    inference: Any, test_set: str, fields: Sequence[str], folder: Path, artifacts: Mapping[str, Any]
) -> None:
    if inference is None:
        said = "is read from the test set of the inference config: give that to measure as well"
        raise StageConfigError("metrics", "metrics", f"{_DATASET}{fields[0]} {said}")
    dataset, idx_key = dataset_of(inference, test_set), inference.get("idx_key") or IDX_KEY
    logger.info("%s: reading %s of %d items", folder, ", ".join(fields), len(dataset))
    rows: dict[str, list[tuple[str, str]]] = {field: [] for field in fields}
    for idx in indices_of(dataset):
        item = dataset[idx]
        uid = scp_id(item.get(idx_key, idx))
        for field in fields:
            if field not in item:
                there = ", ".join(item)
                raise KeyError(f"{test_set}: the item {uid!r} has no field {field!r} (it has {there})")
            value = kept(item[field], artifacts.get(field), folder / "dataset" / field, uid)
            rows[field].append((uid, scp_value(value)))
    for field, found in rows.items():
        write_scp(folder / "dataset" / f"{field}.scp", found)


def _score(metric: AbsMetric, inputs: Mapping[str, str], test_set: str, folder: Path) -> dict[str, Any]:
    # a column of the data is a file in dataset/
    files = {column: re.sub(f"^{_DATASET}", "dataset/", source) for column, source in inputs.items()}
    of_set = folder / test_set
    data = read_aligned(of_set, files)
    errors = of_set / "errors.jsonl"  # of the run folder: one line for each item that failed
    failed = len(errors.read_bytes().splitlines()) if errors.is_file() else 0
    if failed:
        logger.warning("%s: %d items failed in the infer stage and count in no metric", of_set, failed)
    return {**metric(data, test_set, of_set), "failed_items": failed}

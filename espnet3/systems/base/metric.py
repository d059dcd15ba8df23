"""The measure stage: metrics over what the infer stage wrote."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.data_organizer import folder_name
from espnet3.components.data.files import write_text_atomic
from espnet3.components.metrics.abs_metric import AbsMetric
from espnet3.systems.base.blocks import stage_parallel
from espnet3.systems.base.config import as_dict
from espnet3.systems.base.scp import read_aligned
from espnet3.systems.configs.mistakes import require

logger = logging.getLogger(__name__)


def measure(config: Any) -> dict[str, dict[str, Any]]:
    """Compute every metric on every test set and write `<inference_dir>/metrics.json`.

    The config has:

    - `inference_dir`: the folder that the infer stage wrote to;
    - `metrics`: a list of blocks with a `_target_` (a subclass of `AbsMetric`) and its arguments.
      Where the columns are not called as the metric expects, the block is
      `{metric: {_target_: ...}, inputs: {ref: text, hyp: best}}`: column -> file without `.scp`;
    - `test_sets` (optional): their names (a list, or the mapping of the inference config), or entries
      `dataset.test` with names; without them, every folder in `inference_dir` that holds an `.scp` file;
    - `parallel` (optional): registered while the stage runs, for metrics that use `parallel_map` or a runner.

    Items that failed are in no file and thus in no metric; their number is added as `failed_items`
    to the metric's own entries.

    Return import path of the metric -> test set -> what the metric returned. A wrong block or a missing key is a
    ConfigError, no file to measure a FileNotFoundError, and a metric that is no `AbsMetric` a TypeError.
    """
    whole = as_dict(config)
    require(whole, "metrics", ("inference_dir", "metrics"))
    folder = Path(whole["inference_dir"])
    results: dict[str, dict[str, Any]] = {}
    with stage_parallel(config):
        test_sets = _test_sets(whole, folder)
        for block in whole["metrics"]:
            metric, inputs = _make(block)
            name = f"{type(metric).__module__}.{type(metric).__qualname__}"
            if name in results:
                raise ValueError(f"metrics: {name} is listed twice; make one with all its arguments")
            results[name] = {test_set: _score(metric, inputs, test_set, folder) for test_set in test_sets}
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomic(folder / "metrics.json", text + "\n")
    logger.info("metrics of %s in %s", ", ".join(test_sets), folder / "metrics.json")
    return results


def _test_sets(config: Mapping[str, Any], folder: Path) -> list[str]:
    names = config.get("test_sets") or [
        entry["name"] for entry in (config.get("dataset") or {}).get("test") or ()
    ]
    if names:
        return [folder_name(str(name), "test_sets") for name in names]
    found = sorted({path.parent.name for path in folder.glob("*/*.scp")})
    if not found:
        raise FileNotFoundError(f"no folder in {folder} holds an .scp file; run the infer stage first")
    return found


def _make(block: Mapping[str, Any]) -> tuple[AbsMetric, dict[str, str]]:
    from hydra.utils import instantiate  # 0.1 s, and only this stage needs it

    inner = block.get("metric", block)
    metric = instantiate(inner)
    if not isinstance(metric, AbsMetric):
        raise TypeError(
            f"metrics: {inner.get('_target_')!r} made a {type(metric).__name__}, which is no AbsMetric"
        )
    inputs = block.get("inputs") if "metric" in block else None
    return metric, dict(inputs or {metric.ref_key: metric.ref_key, metric.hyp_key: metric.hyp_key})


def _score(metric: AbsMetric, inputs: Mapping[str, str], test_set: str, folder: Path) -> dict[str, Any]:
    data = read_aligned(folder / test_set, inputs)
    errors = folder / test_set / "errors.jsonl"  # of the run folder: one line for each item that failed
    failed = len(errors.read_bytes().splitlines()) if errors.is_file() else 0
    if failed:
        logger.warning(
            "%s: %d items failed in the infer stage and count in no metric", folder / test_set, failed
        )
    return {**metric(data, test_set, folder / test_set), "failed_items": failed}

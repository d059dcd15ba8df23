"""The recipe's configs, put together from files and what the command line says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from espnet3.systems.base.blocks import check_blocks, merge_parallel
from espnet3.systems.base.config import apply_overrides, find_config, load_config

RECIPE_DIR = Path(__file__).resolve().parents[1]

# What measure must agree on with infer; taken from there unless metrics.yaml says otherwise.
_SHARED = ("inference_dir", "test_sets")


@dataclass(frozen=True, slots=True)
class Configs:
    """The configs of the stages.

    Attributes:
        inference: Of create_dataset and infer; its `parallel` block is theirs.
        metrics: Of measure.
    """

    inference: DictConfig
    metrics: DictConfig


def load_configs(
    inference: str = "conf/inference.yaml",
    metrics: str = "conf/metrics.yaml",
    parallel: str | None = None,
    overrides: Sequence[str] = (),
) -> Configs:
    """Read the configs, merge the small parallel file in, and apply overrides.

    Args:
        inference: Name of the inference config.
        metrics: Name of the metrics config.
        parallel: Name of a small config with a `parallel` block, which is merged into that of the inference config.
        overrides: `dotted.key=value`, YAML values.

    Raises:
        FileNotFoundError: There is no such config.
        ValueError: An override fits no config, or the parallel config is wrong.
    """
    infer = load_config(find_config(inference, RECIPE_DIR))
    if parallel is not None:
        path = find_config(parallel, RECIPE_DIR)
        small = load_config(path)
        if list(small) != ["parallel"]:
            raise ValueError(f"{path} must hold the block 'parallel' and nothing else, it has {list(small)}")
        merge_parallel(infer, small)
    measure = load_config(find_config(metrics, RECIPE_DIR))
    apply_overrides({"inference": infer, "metrics": measure}, overrides)
    if infer.get("recipe_dir") == ".":
        infer["recipe_dir"] = str(RECIPE_DIR)
    for config in (infer, measure):
        check_blocks(config)  # a mistake is reported before the first stage runs
    whole = OmegaConf.to_container(infer, resolve=True)
    assert isinstance(whole, dict)
    for key in _SHARED:
        if key not in measure and key in whole:
            measure[key] = whole[key]
    return Configs(infer, measure)

"""A system: the stages of a recipe as methods, and the order they run in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from espnet3.systems.base.blocks import check_blocks, stage_parallel
from espnet3.systems.base.collect_stats import collect_stats
from espnet3.systems.base.create_dataset import create_dataset
from espnet3.systems.base.inference import InferResult, infer
from espnet3.systems.base.metric import measure
from espnet3.systems.base.tokenizer import TOKENIZER_KEYS, train_tokenizer
from espnet3.systems.base.training import is_first_process, started_together, train
from espnet3.systems.demo.page import demo
from espnet3.systems.logs import stage_log
from espnet3.systems.stages import StageSpec, chosen, specs_of

logger = logging.getLogger(__name__)

UNTRAINED = "neither 'optimizer' nor 'trainer', so nothing is trained"


class BaseSystem:
    """Runs stages, each from its own config.

    A subclass adds a stage by writing a method without arguments and naming it in `stages`, or changes one by
    overriding its method. `StageSpec(name, config)` in `stages` says which config the stage reads; a bare name leaves
    that to the method.

    Args:
        inference_config: Config of `infer`; of `create_dataset` too, where the training config has no data.
        metrics_config: Config of `measure`, which takes columns of the data by the inference config.
        training_config: Config of `create_dataset`, `train_tokenizer`, `collect_stats` and `train`.
        demo_config: Config of `demo`.

    Each stage, a subclass's own too, works with the `parallel` block of the config that it reads, for as long as it
    runs. Where that has none, it works with what `set_parallel` has registered. What it says goes to a log as well,
    `<stage>.log` in the folder `log_dir` of that config, else in that of its `StageSpec`.
    """

    stages: ClassVar[tuple[StageSpec | str, ...]] = (
        StageSpec("create_dataset", ("training", "inference"), "data_dir"),
        StageSpec("train_tokenizer", "training", "tokenizer.save_path"),
        StageSpec("collect_stats", "training", "stats_dir"),
        StageSpec("train", "training"),
        StageSpec("infer", "inference", "inference_dir"),
        StageSpec("measure", "metrics", "inference_dir"),
        StageSpec("demo", "demo", in_all=False),  # the page is shown until Ctrl-C
    )

    def __init__(
        self,
        inference_config: Any = None,
        metrics_config: Any = None,
        *,
        training_config: Any = None,
        demo_config: Any = None,
    ) -> None:
        self.training_config = training_config
        self.inference_config = inference_config
        self.metrics_config = metrics_config
        self.demo_config = demo_config

    def run(self, stages: Iterable[str]) -> dict[str, Any]:
        """Run stages in the system's order, whatever order they are given in.

        `stages` has their names, or "all" for every one but `demo`. The configs that they read are checked, and what
        one stage would need of jobs that another only submits, before the first one runs. Return what each stage
        returned, by its name.
        """
        wanted = chosen(type(self), stages)
        configs = {each.name: _config_of(self, each) for each in wanted}
        if "train" in configs and is_ours(type(self), "train"):
            check_blocks(configs["train"], trains=True)
        for config in configs.values():
            check_blocks(config)
        self.check_jobs(configs)
        first = is_first_process()
        results: dict[str, Any] = {}
        for each in wanted:
            name = each.name
            # Lightning has started this script again, for its part of a training
            if not first and name != "train":
                continue
            begin = time.perf_counter()
            log = stage_log(name, configs[name] if first else None, each.log_dir)
            with log, stage_parallel(configs[name]):
                results[name] = getattr(self, name)()
                logger.info("stage %s: %.1f s", name, time.perf_counter() - begin)
        return results

    def check_jobs(self, stages: Iterable[str]) -> None:
        """Check that no stage needs what jobs, or another process, have yet to compute.

        So `measure` cannot follow at once on an `infer` that only submits its items (`async_mode`), and stages before
        `train` are refused in one of several processes that `srun` or `torchrun` has started.
        """
        names = list(stages)
        before = names[: names.index("train")] if "train" in names else []
        if before and (launcher := started_together()):
            raise ValueError(
                f"{launcher} has started several processes of this, and only the first one runs {', '.join(before)}: "
                f"the others would train before it is done. Run what comes before train without {launcher}, and then "
                "train with it"
            )
        if not {"infer", "measure"} <= set(names):
            return
        runner: Any = (self.inference_config or {}).get("runner")
        if hasattr(runner, "get") and runner.get("async_mode"):
            raise ValueError(
                "runner.async_mode is true, so the stage infer only submits jobs, and measure would find nothing, "
                "or the files of an earlier run: run infer alone, then `espnet3-parallel wait` and `merge` "
                "with the folder it prints, then measure"
            )

    def create_dataset(self) -> bool:
        """Build what the config names; see `espnet3.systems.base.create_dataset.create_dataset`.

        The training config is read if it says anything about data, else the inference config.
        """
        return create_dataset(_needed(self, "create_dataset"))

    def train_tokenizer(self) -> Path | None:
        """Train a tokenizer; see `espnet3.systems.base.tokenizer.train_tokenizer`.

        A training config without such a block `tokenizer` needs none: that is logged, and None returned.
        """
        config = _needed(self, "train_tokenizer")
        if not TOKENIZER_KEYS & set(config.get("tokenizer") or ()):
            logger.info("stage train_tokenizer: the training config has no 'tokenizer' to train")
            return None
        return train_tokenizer(config)

    def collect_stats(self) -> dict[str, Any]:
        """Collect statistics; see `espnet3.systems.base.collect_stats.collect_stats`."""
        return collect_stats(_needed(self, "collect_stats"))

    def train(self) -> Path | None:
        """Train a model; see `espnet3.systems.base.training.train`.

        A training config without `optimizer` and `trainer` has nothing to train: that is logged, and None returned.
        """
        config = _needed(self, "train")
        if config.get("optimizer") is None and config.get("trainer") is None:
            logger.info("stage train: the training config has %s", UNTRAINED)
            return None
        return train(config)

    def infer(self) -> dict[str, InferResult]:
        """Decode the test sets; see `espnet3.systems.base.inference.infer`."""
        return infer(_needed(self, "infer"))

    def measure(self) -> dict[str, dict[str, Any]]:
        """Compute the metrics; see `espnet3.systems.base.metric.measure`."""
        return measure(_needed(self, "measure"), self.inference_config)

    def demo(self) -> str:
        """Show a page that recognises recordings, until Ctrl-C; see `espnet3.systems.demo.page.demo`."""
        return demo(_needed(self, "demo"))


# functions, not methods: a subclass may name its own as it likes


def is_ours(system: type, stage: str) -> bool:
    """Return whether a system's stage is that of `BaseSystem`, whose train gives Lightning the block `trainer`."""
    return hasattr(BaseSystem, stage) and getattr(system, stage, None) is getattr(BaseSystem, stage)


def _config_of(system: BaseSystem, stage: StageSpec) -> Any:
    configs: Mapping[str, Any] = {role: getattr(system, f"{role}_config", None) for role in stage.roles}
    return configs.get(stage.role(configs) or "")


def _needed(system: BaseSystem, stage: str) -> Any:
    spec = next(each for each in specs_of(BaseSystem) if each.name == stage)
    config = _config_of(system, spec)
    if config is None:
        names = " or ".join(f"{role}_config" for role in spec.roles)
        raise ValueError(f"stage {stage} needs {names}, and {type(system).__name__} was made without it")
    return config

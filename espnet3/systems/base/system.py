"""A system: the stages of a recipe as methods, and the order they run in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from espnet3.systems.base.blocks import check_blocks
from espnet3.systems.base.collect_stats import collect_stats
from espnet3.systems.base.create_dataset import create_dataset
from espnet3.systems.base.inference import InferResult, infer
from espnet3.systems.base.metric import measure
from espnet3.systems.base.training import is_first_process, started_together, train
from espnet3.systems.demo.page import demo
from espnet3.systems.stages import StageSpec, chosen, roles_of

logger = logging.getLogger(__name__)


class BaseSystem:
    """Runs stages, each from its own config.

    A subclass adds a stage by writing a method without arguments and naming it in `stages`, or
    changes one by overriding its method. `StageSpec(name, config)` in `stages` says which config the stage
    reads; a bare name leaves that to the method.

    Args:
        inference_config: Config of `infer`; of `create_dataset` too, where the training config has no data.
        metrics_config: Config of `measure`.
        training_config: Config of `create_dataset` and `collect_stats`.
        demo_config: Config of `demo`.

    Each stage works with the `parallel` block of its own config, for as long as it runs. Where that has none, it
    works with what `set_parallel` has registered.
    """

    stages: ClassVar[tuple[StageSpec | str, ...]] = (
        StageSpec("create_dataset", ("training", "inference")),
        StageSpec("collect_stats", "training"),
        StageSpec("train", "training"),
        StageSpec("infer", "inference"),
        StageSpec("measure", "metrics"),
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

        `stages` has their names, or "all" for every one but `demo`. The configs of all are checked, and what one stage
        would need of jobs that another only submits, before the first one runs. Return what each stage returned, by
        its name.
        """
        wanted = [each.name for each in chosen(type(self), stages)]
        for role in dict.fromkeys(("training", "inference", "metrics", "demo", *roles_of(type(self)))):
            check_blocks(getattr(self, f"{role}_config", None))
        self.check_jobs(wanted)
        if not is_first_process():  # Lightning has started this script again, for its part of a training
            wanted = [stage for stage in wanted if stage == "train"]
        results: dict[str, Any] = {}
        for stage in wanted:
            begin = time.perf_counter()
            results[stage] = getattr(self, stage)()
            logger.info("stage %s: %.1f s", stage, time.perf_counter() - begin)
        return results

    @classmethod
    def check_stages(cls, stages: Iterable[str]) -> None:
        """Check that there are stages of these names."""
        chosen(cls, stages)

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
        runner = (self.inference_config or {}).get("runner") or {}
        if runner.get("async_mode") and {"infer", "measure"} <= set(names):
            raise ValueError(
                "runner.async_mode is true, so the stage infer only submits jobs, and measure would find nothing, "
                "or the files of an earlier run: run infer alone, then `espnet3-parallel wait` and `merge` "
                "with the folder it prints, then measure"
            )

    def create_dataset(self) -> bool:
        """Build what the config names; see `espnet3.systems.base.create_dataset.create_dataset`.

        The training config is read if it says anything about data, else the inference config.
        """
        return create_dataset(_of_data(self.training_config, self.inference_config))

    def collect_stats(self) -> dict[str, Any]:
        """Collect statistics; see `espnet3.systems.base.collect_stats.collect_stats`."""
        return collect_stats(_needed(self, "training_config", "collect_stats"))

    def train(self) -> Path | None:
        """Train a model; see `espnet3.systems.base.training.train`.

        A training config without `optimizer` and `trainer` has nothing to train: that is logged, and None returned.
        """
        config = _needed(self, "training_config", "train")
        if config.get("optimizer") is None and config.get("trainer") is None:
            logger.info(
                "stage train: the training config has neither 'optimizer' nor 'trainer', so nothing is trained"
            )
            return None
        return train(config)

    def infer(self) -> dict[str, InferResult]:
        """Decode the test sets; see `espnet3.systems.base.inference.infer`."""
        return infer(_needed(self, "inference_config", "infer"))

    def measure(self) -> dict[str, dict[str, Any]]:
        """Compute the metrics; see `espnet3.systems.base.metric.measure`."""
        return measure(_needed(self, "metrics_config", "measure"))

    def demo(self) -> str:
        """Show a page that recognises recordings, until Ctrl-C; see `espnet3.systems.demo.page.demo`."""
        return demo(_needed(self, "demo_config", "demo"))


# functions, not methods: a subclass may name its own as it likes


def _of_data(*configs: Any) -> Any:
    """Return the first config that has a block `create_dataset` or `dataset`; else the first that is there."""
    there = [config for config in configs if config is not None]
    for config in there:
        if config.get("create_dataset") is not None or config.get("dataset") is not None:
            return config
    if not there:
        raise ValueError(
            "stage create_dataset needs training_config or inference_config, and there is neither"
        )
    return there[0]


def _needed(system: BaseSystem, name: str, stage: str) -> Any:
    """Return a config of a system."""
    config = getattr(system, name)
    if config is None:
        raise ValueError(f"stage {stage} needs {name}, and {type(system).__name__} was made without it")
    return config

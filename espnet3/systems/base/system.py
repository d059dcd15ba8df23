"""A system: the stages of a recipe as methods, and the order they run in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from espnet3.systems.base.blocks import check_blocks, stage_parallel
from espnet3.systems.base.inference import InferResult, infer
from espnet3.systems.base.inference_provider import instantiate_block
from espnet3.systems.base.metric import measure

logger = logging.getLogger(__name__)


class BaseSystem:
    """Runs stages, each from its own config.

    A subclass adds a stage by writing a method without arguments and naming it in `stages`, or
    changes one by overriding its method.

    Args:
        inference_config: Config of `create_dataset` and `infer`.
        metrics_config: Config of `measure`.

    Each stage works with the `parallel` block of its own config, for as long as it runs. Where that has none, it
    works with what `set_parallel` has registered.
    """

    stages: ClassVar[tuple[str, ...]] = ("create_dataset", "infer", "measure")

    def __init__(self, inference_config: Any = None, metrics_config: Any = None) -> None:
        self.inference_config = inference_config
        self.metrics_config = metrics_config

    def run(self, stages: Iterable[str]) -> dict[str, Any]:
        """Run stages in the system's order, whatever order they are given in.

        Returns:
            What each stage returned, by its name.

        Raises:
            ConfigError: The block `parallel` or `trainer` of a config is wrong; as below.
            ValueError: There is no such stage, or one needs what another only submits; raised before the first
                one runs.
        """
        wanted = list(stages)
        check_blocks(self.inference_config)
        check_blocks(self.metrics_config)
        self.check_stages(wanted)
        self.check_jobs(wanted)
        results: dict[str, Any] = {}
        for stage in self.stages:
            if stage not in wanted:
                continue
            begin = time.perf_counter()
            results[stage] = getattr(self, stage)()
            logger.info("stage %s: %.1f s", stage, time.perf_counter() - begin)
        return results

    @classmethod
    def check_stages(cls, stages: Iterable[str]) -> None:
        """Check names of stages.

        Raises:
            ValueError: There is no such stage.
        """
        for stage in stages:
            if stage not in cls.stages:
                raise ValueError(f"no stage {stage!r}; {cls.__name__} has {', '.join(cls.stages)}")

    def check_jobs(self, stages: Iterable[str]) -> None:
        """Check that no stage needs what the jobs of an earlier one have yet to compute.

        Raises:
            ValueError: `infer` only submits its items (`async_mode`), and `measure` is to follow at once.
        """
        runner = (self.inference_config or {}).get("runner") or {}
        if runner.get("async_mode") and {"infer", "measure"} <= set(stages):
            raise ValueError(
                "runner.async_mode is true, so the stage infer only submits jobs, and measure would find nothing, "
                "or the files of an earlier run: run infer alone, then `espnet3 wait` and `espnet3 merge` with "
                "the folder it prints, then measure"
            )

    def create_dataset(self) -> bool:
        """Build the dataset with the builder that `create_dataset` names in the config.

        Returns:
            True when it was built now, False when it was complete before.
        """
        config = _needed(self, "inference_config", "create_dataset")
        with stage_parallel(config):
            return bool(instantiate_block(config, "create_dataset").build())

    def infer(self) -> dict[str, InferResult]:
        """Decode the test sets; see `espnet3.systems.base.inference.infer`."""
        return infer(_needed(self, "inference_config", "infer"))

    def measure(self) -> dict[str, dict[str, Any]]:
        """Compute the metrics; see `espnet3.systems.base.metric.measure`."""
        return measure(_needed(self, "metrics_config", "measure"))


def _needed(system: BaseSystem, name: str, stage: str) -> Any:
    """Return a config of a system; a function, so that a subclass may name its methods as it likes.

    Raises:
        ValueError: The system was made without it.
    """
    config = getattr(system, name)
    if config is None:
        raise ValueError(f"stage {stage} needs {name}, and {type(system).__name__} was made without it")
    return config

"""The recipe's stages: those of every recipe, and the comparison of its models."""

from __future__ import annotations

from typing import Any

from espnet3.systems.base.system import BaseSystem
from espnet3.systems.stages import StageSpec
from src.comparison import Counts, compare


class AsteriskSystem(BaseSystem):
    """Adds the stage compare.

    Args:
        compare_config: Config of `compare`.
        **configs: Of `BaseSystem`.
    """

    stages = (*BaseSystem.stages, StageSpec("compare", "compare"))

    def __init__(self, *, compare_config: Any = None, **configs: Any) -> None:
        super().__init__(**configs)
        self.compare_config = compare_config

    def compare(self) -> dict[str, list[Counts]]:
        """Compare models on the held-out prompts; see `src.comparison.compare`."""
        return compare(self.compare_config)

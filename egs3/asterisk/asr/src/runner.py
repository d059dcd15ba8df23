"""The recipe's runner: the longest recordings first."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from espnet3.components.data.data_organizer import indices_of
from espnet3.systems.base.inference_runner import InferenceRunner


class LongestFirstRunner(InferenceRunner):
    """An `InferenceRunner` that starts long recordings first.

    Decode time follows audio length (r = 0.96), and the prompts last from 0.3 to 73 seconds: a
    long one started last keeps one worker busy while the others wait.

    Args:
        provider: Its dataset must have `items` with `seconds`.
        longest_first: False keeps the order of the dataset.
        **kwargs: Of `InferenceRunner`.
    """

    def __init__(self, provider: Any, *, longest_first: bool = True, **kwargs: Any) -> None:
        super().__init__(provider, **kwargs)
        self.longest_first = longest_first

    @cached_property
    def _seconds(self) -> dict[Any, float]:
        dataset = self.provider.build_dataset(self.provider.config)
        lengths = [item.seconds for item in dataset.items]
        if None in lengths:  # a folder without utt2dur: as good as no order
            lengths = [1.0] * len(lengths)
        return dict(zip(indices_of(dataset), lengths, strict=True))

    def item_cost(self, idx: Any) -> float:
        """Return the length of a recording; a constant leaves the order as it is."""
        return self._seconds[idx] if self.longest_first else 1.0

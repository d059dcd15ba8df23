"""The base class of the metrics of the measure stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class AbsMetric(ABC):
    """A metric over aligned columns of text.

    Attributes:
        ref_key: Column of the references; the stage reads `<ref_key>.scp` for it.
        hyp_key: Column of the hypotheses.

    A metric with other columns names them in the `inputs` of its entry in `metrics.yaml`.
    """

    ref_key: str = "ref"
    hyp_key: str = "hyp"

    @abstractmethod
    def __call__(
        self, data: Mapping[str, Sequence[str]], test_name: str, inference_dir: Path
    ) -> dict[str, Any]:
        """Compute the metric of a test set, and return the entries for `metrics.json`: JSON values only.

        Args:
            data: `utt_id` and the columns, all of one length and in one order.
            test_name: Name of the test set.
            inference_dir: Folder of the test set's inference outputs; a metric may write beside them.
        """

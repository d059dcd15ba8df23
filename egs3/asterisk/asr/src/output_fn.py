"""From a dataset item and the recogniser's answer to the row that is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def output_fn(*, data: Mapping[str, Any], model_output: str, idx: int) -> dict[str, Any]:
    """Return the id, the hypothesis and, where there is one, the reference."""
    row = {"utt_id": data["utt_id"], "hyp": model_output}
    if data["text"] is not None:
        row["ref"] = data["text"]
    return row

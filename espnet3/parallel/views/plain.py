"""A report's facts as plain data, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from espnet3.parallel.views.conclusions import conclusions
from espnet3.parallel.views.facts import RunFacts


def facts_to_json(facts: RunFacts) -> dict[str, Any]:
    """Return the facts with the conclusions drawn from them."""
    return {**asdict(facts), "left": facts.left, "conclusions": conclusions(facts)}

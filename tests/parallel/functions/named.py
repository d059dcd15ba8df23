"""Functions that jobs import by name."""

from __future__ import annotations

import random
from typing import Any


def setup() -> dict[str, Any]:
    """Return what the functions need."""
    return {"scale": 3}


def scaled(item: int, scale: int) -> int:
    """Return the item times the scale; the seventh is bad."""
    if item == 7:
        raise ValueError(f"no {item}")
    return item * scale


def drawn(item: int) -> float:
    """Return a random number."""
    return random.random()

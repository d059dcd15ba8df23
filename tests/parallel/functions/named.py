"""Functions that jobs import by name."""

import random
from typing import Any


def setup() -> dict[str, Any]:
    return {"scale": 3}


def scaled(item: int, scale: int) -> int:
    """Return the item times the scale; the seventh is bad."""
    if item == 7:
        raise ValueError(f"no {item}")
    return item * scale


def shifted(item: int, scale: int, shift: int = 0) -> int:
    return scaled(item, scale) + shift


def drawn(item: int) -> float:
    return random.random()
